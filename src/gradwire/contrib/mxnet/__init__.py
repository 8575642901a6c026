"""Training loops of MXNet scripts, by MXNet's names: Gluon's Trainer, Module with its callbacks, and their flags."""
