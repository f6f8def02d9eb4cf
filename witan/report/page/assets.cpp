#include "witan/report/page/assets.h"

// The assembler takes the files in as they are: no escaping, no limit on a literal's length, no generated source.
#define WITAN_EMBED(symbol, file)                                            \
  asm(".section .rodata\n" #symbol "_begin:\n.incbin \"" file "\"\n" #symbol \
      "_end:\n.byte 0\n.previous\n"                                          \
      ".global " #symbol "_begin\n.global " #symbol "_end\n");               \
  extern "C" const char symbol##_begin[];                                    \
  extern "C" const char symbol##_end[];

WITAN_EMBED(witan_page_html, WITAN_ASSETS "page.html")
WITAN_EMBED(witan_still_page_html, WITAN_ASSETS "still_page.html")
WITAN_EMBED(witan_style_css, WITAN_ASSETS "style.css")
WITAN_EMBED(witan_charts_js, WITAN_ASSETS "charts.js")
WITAN_EMBED(witan_heatmap_js, WITAN_ASSETS "heatmap.js")
WITAN_EMBED(witan_controls_js, WITAN_ASSETS "controls.js")
WITAN_EMBED(witan_live_js, WITAN_ASSETS "live.js")
WITAN_EMBED(witan_dygraphs_license, WITAN_ASSETS "dygraphs_license.txt")
WITAN_EMBED(witan_dygraphs_js, WITAN_DYGRAPHS "dygraph.min.js")
WITAN_EMBED(witan_dygraphs_css, WITAN_DYGRAPHS "dygraph.min.css")

namespace witan::assets {

const std::string_view kPageHtml(witan_page_html_begin, witan_page_html_end);
const std::string_view kStillPageHtml(witan_still_page_html_begin, witan_still_page_html_end);
const std::string_view kStyleCss(witan_style_css_begin, witan_style_css_end);
const std::string_view kChartsJs(witan_charts_js_begin, witan_charts_js_end);
const std::string_view kHeatmapJs(witan_heatmap_js_begin, witan_heatmap_js_end);
const std::string_view kControlsJs(witan_controls_js_begin, witan_controls_js_end);
const std::string_view kLiveJs(witan_live_js_begin, witan_live_js_end);
const std::string_view kDygraphsJs(witan_dygraphs_js_begin, witan_dygraphs_js_end);
const std::string_view kDygraphsCss(witan_dygraphs_css_begin, witan_dygraphs_css_end);
const std::string_view kDygraphsLicense(witan_dygraphs_license_begin, witan_dygraphs_license_end);

}  // namespace witan::assets
