"""Choice of a method for each bucket during training: measured, predicted, and decided by all ranks alike.

    controller       the table of states.py, carried out: what is done in which step
    recorder         measuring: the records of steps (step_record), and windows of them that all ranks share
    step_model       predicting a step and its error, from the link (link_model, misses), the codes of each candidate
                     (probe) and the norms of gradients (gradient_norms)
    search           choosing: the shortest step within the budget (decide), if it saves more than a margin (hysteresis)
    choices          what may be chosen: methods with their strategies, by budget
    exchanged_steps  what CompressedStep would gain
    decisions        what was decided, for checkpoints and for runs that repeat it
    reporter         the lines and tables that show it

    link_cost        seconds of a round of messages: latency, bytes over the rate, and what TCP and Ethernet add
    host_links       the same where several ranks share a host, measured between hosts and inside them
    shared_link      the gathers of weights, which share the link with reductions
    traffic          the rounds of messages of each bucket, by strategy, from the payloads' exact layouts
    profile          when the backward pass hands out each bucket
    codec            seconds of encoding and decoding each bucket, measured on a channel that carries nothing
    timeline         all of them in the order in which the communication thread exchanges them

The advisor (``gradwire_lab.advise``) predicts with the same model before training.
"""
