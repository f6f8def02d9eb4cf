#include "witan/report/page/still_figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "witan/base/text.h"
#include "witan/report/page/assets.h"
#include "witan/report/page/markup.h"

namespace witan {
namespace {

// In the units of the view box, which is stretched to the figure's width.
constexpr double kWidth = 520, kHeight = 230, kLeft = 52, kRight = 12, kTop = 10, kBottom = 28;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;

std::string figure_around(const FigureText& text, std::string_view inside) {
  return fmt::format(
      "<figure><figcaption><h3>{} <span class=\"unit\">{}</span></h3><span class=\"readout\">{}</span></figcaption>\n"
      "{}</figure>\n",
      escape_html(text.title), escape_html(text.unit), escape_html(text.readout), inside);
}

std::string svg_around(std::string_view label, std::string_view inside) {
  return fmt::format(
      "<svg class=\"still\" viewBox=\"0 0 {} {}\" width=\"100%\" role=\"img\" aria-label=\"{}\" font-size=\"12\" "
      "fill=\"var(--muted)\">\n{}</svg>\n",
      kWidth, kHeight, escape_html(label), inside);
}

std::string svg_text(double x, double y, const char* anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escape_html(text));
}

std::string rule(double y) {
  return fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"var(--rule)\"/>\n", kLeft,
                     kWidth - kRight, y);
}

// 1, 2 or 5 times a power of ten, so that about four of them reach `most`.
double nice_step(double most) {
  static constexpr double kFactors[] = {1, 2, 5};
  const double power = std::pow(10, std::floor(std::log10(most / 4)));
  for (const double factor : kFactors)
    if (most / (factor * power) <= 5) return factor * power;
  return 10 * power;
}

std::string axis_number(double value) {
  return value < 1e5 ? fmt::format("{:.0f}", value) : format_count(value);
}

// "1", "10", "1 K": marks of a logarithmic axis.
std::string power_of_ten(int exponent) {
  static constexpr const char* kPrefixes[] = {"", " K", " M", " G", " T"};
  if (exponent < 0 || exponent >= 15) return fmt::format("1e{}", exponent);
  return fmt::format("{}{}", std::pow(10, exponent % 3), kPrefixes[exponent / 3]);
}

}  // namespace

std::string bar_figure(const FigureText& text, const std::vector<FigureBar>& bars) {
  double most = 0;
  for (const FigureBar& bar : bars) most = std::max(most, bar.value);
  if (most == 0) return figure_around(text, "");
  const double step = std::max(nice_step(most), 1.0), top = std::ceil(most / step) * step;
  std::string svg;
  for (double mark = 0; mark <= top + step / 2; mark += step) {
    const double y = kTop + kPlotHeight * (1 - mark / top);
    svg += rule(y) + svg_text(kLeft - 6, y + 4, "end", axis_number(mark));
  }
  const double each = kPlotWidth / static_cast<double>(bars.size());
  size_t widest = 1;
  for (const FigureBar& bar : bars) widest = std::max(widest, bar.label.size());
  constexpr double kLetter = 7;  // of the labels' font
  const auto every = static_cast<size_t>(std::ceil(kLetter * (static_cast<double>(widest) + 1) / each));
  for (size_t i = 0; i < bars.size(); ++i) {
    const double x = kLeft + each * static_cast<double>(i), height = kPlotHeight * bars[i].value / top;
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"var(--series-1)\"><title>{}</title>"
        "</rect>\n",
        x + each * 0.06, kTop + kPlotHeight - height, each * 0.88, height, escape_html(bars[i].hint));
    if (i % every != 0) continue;
    const std::string label = svg_text(x + each / 2, kHeight - 9, "middle", bars[i].label);
    svg += i / every % 2 == 0 ? label : "<g class=\"between\">" + label + "</g>\n";
  }
  return figure_around(text, svg_around(text.title, svg));
}

std::string share_figure(const FigureText& text, const std::vector<FigureBar>& bars) {
  double most = 0;
  for (const FigureBar& bar : bars) most = std::max(most, bar.value);
  std::string rows = "<div class=\"stack shares\">\n";
  for (const FigureBar& bar : bars)
    rows += fmt::format(
        "<span>{}</span><span class=\"bar\"><i class=\"tag-0\" style=\"width:{:.2f}%\"></i></span><span>{}</span>\n",
        escape_html(bar.label), most > 0 ? 100 * bar.value / most : 0, escape_html(bar.hint));
  return figure_around(text, rows + "</div>\n");
}

std::string log_curve_figure(const FigureText& text, const Curve& curve) {
  if (curve.empty()) return figure_around(text, "");
  const auto decades = [](double low, double high) {
    const double first = std::floor(std::log10(low)), last = std::ceil(std::log10(high));
    return std::pair{first, std::max(last, first + 1)};
  };
  double low = curve.front().y, high = low;
  for (const Point& point : curve) {
    low = std::min(low, point.y);
    high = std::max(high, point.y);
  }
  const auto [left, right] = decades(curve.front().x, curve.back().x);
  const auto [bottom, top] = decades(low, high);
  const auto x_of = [&, l = left, r = right](double power) { return kLeft + kPlotWidth * (power - l) / (r - l); };
  const auto y_of = [&, b = bottom, t = top](double power) { return kTop + kPlotHeight * (t - power) / (t - b); };
  std::string svg, path;
  for (int mark = static_cast<int>(bottom); mark <= static_cast<int>(top); ++mark)
    svg += rule(y_of(mark)) + svg_text(kLeft - 6, y_of(mark) + 4, "end", power_of_ten(mark));
  for (int mark = static_cast<int>(left); mark <= static_cast<int>(right); ++mark)
    svg += svg_text(x_of(mark), kHeight - 9, mark == static_cast<int>(right) ? "end" : "middle", power_of_ten(mark));
  for (const Point& point : curve)
    path +=
        fmt::format("{}{:.2f} {:.2f}", path.empty() ? "M" : "L", x_of(std::log10(point.x)), y_of(std::log10(point.y)));
  svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"var(--series-1)\" stroke-width=\"2\"/>\n", path);
  return figure_around(text, svg_around(text.title, svg));
}

std::string still_page(std::string_view title, std::string_view body, std::string_view source) {
  return fill(
      assets::kStillPageHtml,
      {{"title", escape_html(title)}, {"body", body}, {"source", escape_html(source)}, {"style", assets::kStyleCss}});
}

}  // namespace witan
