"""What every room may use: modules that start anew, threads, a quick start, old places of modules."""
