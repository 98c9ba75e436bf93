"""read_back.py FOLDER: what TensorBoard's EventAccumulators have of a folder of event files, as JSON
{"scalars"|"tensors": {tag: [[step, value], ...]}}. Runs in library.py's environment."""
import json
import sys

from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.util import tensor_util


def scalars(folder):
    reader = event_accumulator.EventAccumulator(folder, size_guidance={event_accumulator.SCALARS: 0})
    reader.Reload()
    return {tag: [[event.step, event.value] for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def tensors(folder):
    reader = plugin_event_accumulator.EventAccumulator(folder, size_guidance={plugin_event_accumulator.TENSORS: 0})
    reader.Reload()
    return {tag: [[event.step, float(tensor_util.make_ndarray(event.tensor_proto))] for event in reader.Tensors(tag)]
            for tag in reader.Tags()["tensors"]}


json.dump({"scalars": scalars(sys.argv[1]), "tensors": tensors(sys.argv[1])}, sys.stdout)
