"""Choice of a method for each bucket during training: measured, predicted, and decided by all ranks alike.

    states           the table: what follows from what
    controller       the table, carried out: what is done in which step
    recorder         measuring: the records of steps (step_record), and windows of them that all ranks share
    step_model       predicting a step and its error, from the link (link_model, misses), the codes of each candidate
                     (probe) and the norms of gradients (gradient_norms)
    search           choosing a method for each bucket: the shortest step within the budget (``decide.best``), if it
                     saves more than a margin (hysteresis); ``AutoController._choose`` makes an event of the answer
    choices          what may be chosen: methods with their strategies, by budget
    exchanged_steps  what CompressedStep would gain
    decisions        the log of what was decided, for checkpoints and for runs that repeat it
    reporter         the lines and tables that show it

    link_cost        seconds of a round of messages: latency, bytes over the rate, and what TCP and Ethernet add
    host_links       the same where several ranks share a host, measured between hosts and inside them
    shared_link      the gathers of weights, which share the link with reductions
    traffic          the rounds of messages of each bucket, by strategy, from the payloads' exact layouts
    timeline         all of them in the order in which the communication thread exchanges them

The advisor (``gradwire_lab.advise``) predicts with the same model before training.
"""
