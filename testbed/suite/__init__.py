"""What pytest needs for the suite: scheduling, forks, durations, temporary folders."""
