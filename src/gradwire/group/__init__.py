"""What the ranks of a group need of each other: a channel, agreement, spare groups, and the parts of what they send."""
