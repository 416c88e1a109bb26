"""Methods of other papers, and heads from moments, on the same footing as ours."""
