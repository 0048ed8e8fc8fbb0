"""The commands ``plan``, ``apply``, ``report``, ``check`` and ``render``."""
