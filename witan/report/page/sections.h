// The parts of the report without scripts: figures, memory, samples, configuration. Each returns HTML, or "" without
// data.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/report/events/metrics.h"
#include "witan/report/page/charts.h"

namespace witan {

std::string header_section(const Metrics& metrics, std::string_view name);
std::string key_figures(const Metrics& metrics);
std::string chart_section(std::string_view title, std::string_view inside, const std::vector<Chart>& charts,
                          Chart::Section section);
std::string heat_panels(const std::optional<HeatMap>& heat);  // to be put inside a chart_section
std::string memory_section(const std::vector<MemoryEvent>& memory);
std::string anomaly_section(const std::vector<AnomalyEvent>& anomalies);
std::string sample_section(const std::vector<SampleEvent>& samples);
std::string config_section(std::string_view config, const std::optional<RunEvent>& run);

}  // namespace witan
