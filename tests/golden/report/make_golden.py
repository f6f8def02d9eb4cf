#!/usr/bin/env python3
"""Writes events.tfevents and configuration.tfevents beside this script with TensorBoard's own classes.

Made with Python 3.11.7, tensorboard 2.21.0, protobuf 7.36.2, numpy 2.4.6. The bytes are committed; run this only to
change them. `make_golden.py FOLDER` instead prints what TensorBoard reads from the event files of a folder.
"""
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

if len(sys.argv) > 1:
    events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    for tag in events.Tags()["scalars"]:
        print(tag, [(e.step, e.value) for e in events.Scalars(tag)])
    for tag in events.Tags()["histograms"]:
        print(tag, [(e.step, list(e.histogram_value.bucket)) for e in events.Histograms(tag)])
    for tag in events.PluginTagToContent("text"):
        print(tag, [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(tag)])
    for tag, content in events.PluginTagToContent("hparams").items():
        print(tag, plugin_data_pb2.HParamsPluginData.FromString(content))
    sys.exit()

histogram = HistogramProto(min=-0.5, max=2.5, num=7, sum=6, sum_squares=10, bucket_limit=[0.5, 1.5, 2.5], bucket=[3, 2, 2])
values = [
    Summary.Value(tag="lm loss", simple_value=2.5),
    Summary.Value(tag="num-zeros", simple_value=0),
    Summary.Value(tag="expert-load/layer 1", histo=histogram),
]


def write(name, events):
    with open(pathlib.Path(__file__).parent / name, "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())


version = Event(wall_time=1730000000.25, file_version="brain.Event:2")
write(
    "events.tfevents",
    [
        version,
        Event(wall_time=1730000000.25, step=301, session_log=SessionLog(status=SessionLog.START)),
        Event(wall_time=1730000001.5, step=301, summary=Summary(value=values)),
        Event(wall_time=1730000002.5, summary=Summary(value=[Summary.Value(tag="x" * 200, simple_value=-1e-30)])),
    ],
)


# A summary of the HPARAMS tab, whose maps are in order: TensorBoard's own functions leave them in any.
def ordered(summary):
    plugin = summary.value[0].metadata.plugin_data
    plugin.content = plugin_data_pb2.HParamsPluginData.FromString(plugin.content).SerializeToString(deterministic=True)
    return summary


time = 1730000003.5
hyperparameters = [
    summary_v2.HParam("train_iters"),
    summary_v2.HParam("lr"),
    summary_v2.HParam("fp8", summary_v2.Discrete([False, True])),
    summary_v2.HParam("dtype", summary_v2.Discrete(["bfloat16", "float32"], dtype=str)),
    summary_v2.HParam("data"),
]
metrics = [summary_v2.Metric("lm loss"), summary_v2.Metric("bits-per-byte")]
columns = summary_v2.hparams_config_pb(hyperparameters, metrics, time)
# What summary_v2 cannot say: types of what has no domain, and which keys differ.
plugin = columns.value[0].metadata.plugin_data
content = plugin_data_pb2.HParamsPluginData.FromString(plugin.content)
for info in content.experiment.hparam_infos:
    info.differs = info.name in ("lr", "fp8")
    info.type = info.type or (api_pb2.DATA_TYPE_STRING if info.name == "data" else api_pb2.DATA_TYPE_FLOAT64)
plugin.content = content.SerializeToString()
session = {"train_iters": 1000, "lr": 0.0, "fp8": False, "dtype": "bfloat16", "data": ""}
start = ordered(summary_v2.hparams_pb(session, trial_id="", start_time_secs=time))
end = plugin_data_pb2.HParamsPluginData(
    session_end_info=plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_FAILURE, end_time_secs=time)
)
end_value = Summary.Value(
    tag=metadata.SESSION_END_INFO_TAG, metadata=metadata.create_summary_metadata(end), tensor=metadata.NULL_TENSOR
)
write(
    "configuration.tfevents",
    [
        version,
        Event(wall_time=time, step=301, summary=text_pb("configuration", "```toml\nlr = 0.5\n```\n")),
        Event(wall_time=time, summary=columns),
        Event(wall_time=time, summary=start),
        Event(wall_time=time, summary=Summary(value=[end_value])),
    ],
)
