"""Does compression pay, for a model, a network and a number of workers? Predicted from what is measured here.

    profile     when the backward pass hands out each bucket, and how long a step takes without any exchange
    traffic     the rounds of messages of each bucket, by strategy, from the payloads' exact layouts
    codec       seconds of encoding and decoding each bucket, of the exchange itself on a channel that carries nothing
    wire        seconds of a round: latency, bytes over the rate, and what TCP and Ethernet add
    pipeline    all of them in the order in which the communication thread works them off
    advice      the candidates in order, or "do not compress"

Nothing here is fitted to the steps it predicts: ``gradwire check advise`` compares the two.
"""
