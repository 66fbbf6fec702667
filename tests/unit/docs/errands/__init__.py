"""Programs that use what an errand added, each in a copy of the tree, and what the errands change there."""
