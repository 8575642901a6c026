"""The laboratory of gradwire: what measures, trains benchmarks, emulates links, advises and reports.

It imports the library and is never imported by it. Its commands are joined to the program ``gradwire`` by the entry
point group ``gradwire.commands``.
"""
