"""Cooperation of the ranks of a group: a channel, agreement, spare groups, and the parts of messages."""
