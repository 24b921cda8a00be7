"""Takes samples: a matrix of runs, each in a process of its own. What they mean is the room `measure`'s business."""
