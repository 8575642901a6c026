"""One parser for each method, written from docs/wire.md.

``parse(payload, config, shape)`` gives the decoded elements.
"""
