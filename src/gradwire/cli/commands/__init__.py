"""The library's commands of ``gradwire``: one in each file of this folder."""
