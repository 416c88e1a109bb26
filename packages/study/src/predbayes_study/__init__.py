"""A study from plan to report: what coordinator and sites do, by files or over a network.

The names below are what a program needs; each is imported on first use. The rooms behind them:

    coordinator   the study's folder and its steps
    site          training, approvals, the model taken home
    report        pages for people
    result        from accepted uploads to a model and what is known about it
    kit           the frozen plan and the reference rows, as every site has them
    tables        a site's own table in the plan's terms
    plan          what is agreed on
    store         ledger, locks
"""

import lazy_loader

__version__ = "0.1.0.dev0"
"""The version of the package; all four have one."""
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
