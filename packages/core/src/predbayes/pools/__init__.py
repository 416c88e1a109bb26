"""How the predictives of several sites become one; one pool in one file, by the `Pool` protocol."""
