"""The check of NCCL with several ranks, which share one GPU if there is no other, over links of a given rate.

way            how ranks are connected: over NCCL as hosts of their own, or as ranks of one GPU; rehearsed over Gloo
rows_file      the rows that were found so far, from which a second call goes on
messages       the plain collectives, in seconds
trainings      trainings that must end as they do over Gloo on the CPU
side_streams   what only shows where streams run beside each other, and the ends of ranks
link_speed     trainings over links: their speed, and what ``gradwire advise`` predicts of it
check          all of it, in order, within the minutes that it is given
"""
