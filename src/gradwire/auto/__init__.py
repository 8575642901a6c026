"""Choice of a method for each bucket during training: measured, predicted, and decided by all ranks alike.

    wire        seconds of a round of messages: latency, bytes over the rate, and what TCP and Ethernet add
    host_links  the same where several ranks share a host, measured between hosts and inside them
    traffic     the rounds of messages of each bucket, by strategy, from the payloads' exact layouts
    profile     when the backward pass hands out each bucket
    codec       seconds of encoding and decoding each bucket, of the exchange itself on a channel that carries nothing
    pipeline    all of them in the order in which the communication thread works them off

The advisor (``gradwire_lab.advise``) predicts with the same model before training.
"""
