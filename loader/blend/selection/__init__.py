"""Selection of a dataset's samples by what its index says of them: a condition, a split by groups, a quota a group."""
