// The report's own files and dygraphs, embedded into the binary when it is built.
#pragma once

#include <string_view>

namespace witan::assets {

extern const std::string_view kPageHtml;
extern const std::string_view kStillPageHtml;
extern const std::string_view kStyleCss;
extern const std::string_view kChartsJs;
extern const std::string_view kHeatmapJs;
extern const std::string_view kControlsJs;
extern const std::string_view kLiveJs;
extern const std::string_view kDygraphsJs;
extern const std::string_view kDygraphsCss;
extern const std::string_view kDygraphsLicense;

}  // namespace witan::assets
