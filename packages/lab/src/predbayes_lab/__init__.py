"""The paper reproduced and compared: configs, sweeps, records, tables and figures."""
