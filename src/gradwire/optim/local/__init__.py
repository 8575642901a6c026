"""Workers that make steps of their own, and exchange at times what came of them: local SGD, DiLoCo, compressed steps,
and the meeting at which those who come and go agree on a round.
"""
