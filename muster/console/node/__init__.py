"""What operators of nodes type: join, watch, retire, and keep a node running."""
