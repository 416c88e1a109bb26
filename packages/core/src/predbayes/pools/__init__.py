"""How the predictives of several sites become one; one pool in one file, by the `Pool` protocol."""

from predbayes.pools.auto import AutoPool as AutoPool
from predbayes.pools.pool import Pool as Pool
from predbayes.pools.pool import PoolState as PoolState
from predbayes.pools.terms import TermPool as TermPool
from predbayes.pools.terms import beta as beta
from predbayes.pools.terms import gated as gated
from predbayes.pools.terms import gpoe as gpoe
from predbayes.pools.terms import log_pool as log_pool
from predbayes.pools.terms import mixture as mixture
from predbayes.pools.terms import product as product
from predbayes.pools.terms import rbcm as rbcm
from predbayes.pools.terms import tempered as tempered
