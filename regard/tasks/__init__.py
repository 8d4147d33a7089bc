"""Tasks: data, loss, metric and defaults, brought together for :func:`regard.train.fit`."""
