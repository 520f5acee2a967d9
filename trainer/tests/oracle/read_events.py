"""Prints what TensorBoard's own reader finds in a folder of event files, as JSON: tag to [[step, value], …].

    python trainer/tests/oracle/read_events.py FOLDER       # needs tensorboard
"""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

accumulator = EventAccumulator(sys.argv[1])
accumulator.Reload()
scalars = {tag: [[e.step, e.value] for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
print(json.dumps(scalars))
