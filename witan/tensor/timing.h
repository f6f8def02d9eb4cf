// Measures the time of work on a stream's device: by the device's own clock on a GPU, by Stream::now() elsewhere.
#pragma once

#include <functional>
#include <vector>

#include "witan/tensor/device.h"

namespace witan {

// The median over samples of the seconds of a call, after warm-up calls. A sample is as many consecutive calls as take
// a fifth of a millisecond, so that neither clock resolution nor launches matter; there are as many samples as fit into
// `budget` seconds, at least five. Waits for the stream.
double median_seconds(Stream& stream, double budget, const std::function<void()>& call);

// Seconds of each of a given number of calls, for work that several ranks must call equally often. Waits for the
// stream.
std::vector<double> time_calls(Stream& stream, int calls, const std::function<void()>& call);

}  // namespace witan
