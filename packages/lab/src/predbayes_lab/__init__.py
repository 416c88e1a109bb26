"""The paper reproduced and compared: configs, sweeps, records, tables and figures."""

__version__ = "0.1.0.dev0"
"""The version of the package; all four have one."""
