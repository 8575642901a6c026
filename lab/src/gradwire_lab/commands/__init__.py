"""The laboratory's commands of ``gradwire``: one in each file of this folder."""
