#include "witan/report/page/sections.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "witan/base/text.h"
#include "witan/report/events/figures.h"
#include "witan/report/page/assets.h"
#include "witan/report/page/markup.h"

namespace witan {
namespace {

// Sizes in units of the view box, which is stretched to the figure's width.
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

namespace {

// Whether a word that follows a number is its unit: "%", "GFLOP/s", "MiB", "K", "min".
bool is_unit(std::string_view word) {
  if (word.empty()) return false;
  if (word.front() == '%' || (word.front() >= 'A' && word.front() <= 'Z')) return true;
  constexpr std::string_view kTimes[] = {"ms", "s", "min", "h", "d"};
  return std::ranges::find(kTimes, word) != std::end(kTimes);
}

// No line ends between a number and its unit, however narrow a tile is.
std::string keep_units(std::string_view text) {
  constexpr std::string_view kNoBreakSpace = "\u00a0";
  std::string kept;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool after_number = i > 0 && text[i] == ' ' && text[i - 1] >= '0' && text[i - 1] <= '9';
    const std::string_view next = after_number ? text.substr(i + 1, text.find_first_of(" ,;", i + 1) - (i + 1)) : "";
    if (is_unit(next))
      kept += kNoBreakSpace;
    else
      kept += text[i];
  }
  return kept;
}

std::string figure(std::string_view label, std::string_view value, std::string_view remark) {
  return fmt::format("<div><dt>{}</dt><dd class=\"value\">{}</dd><dd class=\"remark\">{}</dd></div>\n",
                     escape_html(label), escape_html(keep_units(value)), escape_html(keep_units(remark)));
}

std::string when_of(const SmoothedFigure& figure) {
  return figure.span > 1 ? "smoothed" : fmt::format("step {}", figure.step);
}

std::string loss_figure(const Metrics& m) {
  const std::optional<SmoothedFigure> loss = training_loss(m);
  if (!loss) return figure("Training loss", "nan", unit_of_loss(m));
  return figure("Training loss", fmt::format("{:.3f}", loss->value),
                fmt::format("{}, {}", unit_of_loss(m), when_of(*loss)));
}

// An evaluation may be older than the steps beside it.
std::string against_baseline(const EvalEvent& eval, const std::vector<BaselineEvent>& baselines) {
  if (baselines.empty()) return fmt::format("validation text, step {}", eval.step);
  const BaselineEvent& b = baselines.front();
  const double share = 100 * (eval.bits_per_byte / b.bits_per_byte - 1);
  return fmt::format("{:.1f} % {} {}, {:.3f}; step {}", std::abs(share), share <= 0 ? "below" : "above", b.name,
                     b.bits_per_byte, eval.step);
}

std::string speed_remark(const Metrics& m, double gflops) {
  const double ceiling = ceiling_gflops(m);
  std::string remark = fmt::format("in the median step; {:.3g} GFLOP/s", gflops);
  if (ceiling > 0) remark += fmt::format(", {:.0f} % of the ceiling", 100 * gflops / ceiling);
  return remark;
}

}  // namespace

std::string header_section(const Metrics& m, std::string_view name) {
  std::string facts;
  if (m.run)
    facts = fmt::format("Started {} · {} {}{} · ", m.run->started, m.run->world_size,
                        m.run->world_size == 1 ? "rank" : "ranks", m.run->layout ? ": " + *m.run->layout : "");
  if (m.end)
    facts += m.end->reason;
  else
    facts += m.run || !m.steps.empty() ? "not finished" : "nothing recorded";
  return fmt::format(
      "<header>\n<p class=\"kicker\">Witan training report</p>\n<h1>{}</h1>\n<p class=\"facts\">{}</p>\n</header>\n",
      escape_html(name), escape_html(facts));
}

std::string key_figures(const Metrics& m) {
  std::string out = "<dl class=\"figures\">\n";
  if (const auto reward = training_reward(m))
    out += figure("Reward", fmt::format("{:.3f}", reward->value), "of sampled answers, " + when_of(*reward));
  if (!m.evals.empty() && m.evals.back().reward)
    out += figure("Eval reward", fmt::format("{:.3f}", *m.evals.back().reward),
                  fmt::format("of held-out prompts, step {}", m.evals.back().step));
  if (!m.steps.empty()) out += loss_figure(m);
  if (!m.evals.empty()) {
    out += figure("Validation loss", fmt::format("{:.3f}", m.evals.back().loss),
                  fmt::format("{}, step {}", m.evals.back().figures.empty() ? "nats per token" : "of preferences",
                              m.evals.back().step));
    for (const auto& [name, value] : m.evals.back().figures)
      if (name == "reward_accuracy") out += figure("Accuracy", fmt::format("{:.3f}", value), "of rewards, validation");
    if (m.evals.back().figures.empty())
      out += figure("Bits per byte", fmt::format("{:.3f}", m.evals.back().bits_per_byte),
                    against_baseline(m.evals.back(), m.baselines));
  }
  if (!m.steps.empty()) {
    const StepEvent& last = m.steps.back();
    const RunSpeed speed = run_speed(m);
    out += figure("Tokens per second", format_count(speed.tokens_per_s), speed_remark(m, speed.gflops));
    out +=
        figure("Time", format_duration(last.elapsed_s),
               m.run ? fmt::format("step {} of {}", last.step, m.run->total_steps) : fmt::format("step {}", last.step));
    if (const auto tokens = tokens_seen(m))
      out += figure("Tokens seen", format_count(static_cast<double>(*tokens)),
                    fmt::format("{}{} per step", last.tokens ? "up to " : "", m.run->tokens_per_step));
    if (const int64_t skipped = skipped_steps(m); skipped > 0)
      out += figure("Skipped steps", fmt::format("{}", skipped), "non-finite gradients, spikes or equal rewards");
  }
  if (m.run)
    out += figure("Parameters", format_count(static_cast<double>(m.run->parameters)),
                  m.run->active_parameters == m.run->parameters
                      ? "all active for every token"
                      : format_count(static_cast<double>(m.run->active_parameters)) + " active per token");
  if (const auto peak = peak_memory(m.memory))
    out += figure("Peak memory", format_bytes(static_cast<double>(*peak)), "largest rank's memory");
  return out + "</dl>\n";
}

std::string chart_section(std::string_view title, std::string_view inside, const std::vector<Chart>& charts,
                          Chart::Section section) {
  std::string figures;
  // Two in a row; where the number is odd, the first takes a row of its own.
  bool wide =
      std::count_if(charts.begin(), charts.end(), [&](const Chart& c) { return c.section == section; }) % 2 == 1;
  for (size_t i = 0; i < charts.size(); ++i) {
    if (charts[i].section != section) continue;
    figures += fmt::format(
        "<figure data-chart=\"{}\"{}><figcaption><h3>{} <span class=\"unit\">{}</span></h3>"
        "<span class=\"readout\"></span></figcaption><div class=\"plot\"></div></figure>\n",
        i, wide ? " class=\"wide\"" : "", escape_html(charts[i].title), escape_html(charts[i].unit));
    wide = false;
  }
  if (figures.empty() && inside.empty()) return "";
  return fmt::format("<section>\n<h2>{}</h2>\n{}<div class=\"grid\">\n{}</div>\n</section>\n", escape_html(title),
                     inside, figures);
}

std::string heat_panels(const std::optional<HeatMap>& heat) {
  if (!heat) return "";
  constexpr size_t kOpenPanels = 8;  // the rest of a deep model stays folded
  std::string out =
      "<p class=\"note\">Share of each layer’s routed tokens that every expert receives, over training. "
      "Balanced routing is colourless.</p>\n"
      "<div class=\"scale\"><span class=\"low\"></span><span class=\"bar\"></span><span class=\"high\"></span></div>\n"
      "<div class=\"heat\">\n";
  const size_t count = heat->panels.size();
  for (size_t i = 0; i < count; ++i) {
    if (i == kOpenPanels)
      out += fmt::format("</div>\n<details class=\"more\"><summary>{} more layers</summary>\n<div class=\"heat\">\n",
                         count - i);
    const HeatPanel& panel = heat->panels[i];
    out += fmt::format(
        "<figure data-layer=\"{}\"><figcaption><h3>Layer {} <span class=\"unit\">{} experts</span></h3>"
        "<span class=\"readout\"></span></figcaption><div class=\"cells\"><canvas role=\"img\" "
        "aria-label=\"Load of the experts of layer {} over steps\"></canvas></div></figure>\n",
        i, panel.layer, panel.experts, panel.layer);
  }
  return out + (count > kOpenPanels ? "</div>\n</details>\n" : "</div>\n");
}

namespace {

std::vector<std::string> tag_names(const std::vector<MemoryEvent>& memory) {
  std::set<std::string> names;
  for (const MemoryEvent& rank : memory)
    for (const auto& [name, bytes] : rank.tags) names.insert(name);
  return {names.begin(), names.end()};
}

double tag_bytes(const MemoryEvent& rank, const std::string& name) {
  const auto found = rank.tags.find(name);
  return found == rank.tags.end() ? 0 : static_cast<double>(found->second);
}

double tag_total(const MemoryEvent& rank) {
  double total = 0;
  for (const auto& [tag, bytes] : rank.tags) total += static_cast<double>(bytes);
  return total;
}

size_t tag_colour(size_t i) {
  return std::min<size_t>(i, 6);
}

std::string memory_bar(const MemoryEvent& rank, const std::vector<std::string>& names, double longest) {
  std::string out = fmt::format("<span>Rank {}</span><span class=\"bar\">", rank.rank);
  for (size_t i = 0; i < names.size(); ++i) {
    const double bytes = tag_bytes(rank, names[i]);
    if (bytes > 0)
      out += fmt::format("<i class=\"tag-{}\" style=\"width:{:.2f}%\" title=\"{}: {}\"></i>", tag_colour(i),
                         100 * bytes / longest, escape_html(names[i]), format_bytes(bytes));
  }
  return out + fmt::format("</span><span>{}</span>\n", format_bytes(static_cast<double>(rank.peak)));
}

std::string memory_table(const std::vector<MemoryEvent>& memory, const std::vector<std::string>& names) {
  const auto cell = [](double bytes) { return fmt::format("<td>{}</td>", format_bytes(bytes)); };
  std::string out = "<div class=\"scroll\"><table><thead><tr><th>most of each kind</th>";
  for (const MemoryEvent& rank : memory) out += fmt::format("<th>Rank {}</th>", rank.rank);
  out += "</tr></thead><tbody>\n";
  for (size_t i = 0; i < names.size(); ++i) {
    out += fmt::format("<tr><td><span class=\"swatch tag-{}\"></span>{}</td>", tag_colour(i), escape_html(names[i]));
    for (const MemoryEvent& rank : memory) out += cell(tag_bytes(rank, names[i]));
    out += "</tr>\n";
  }
  out += "<tr><td>arena that holds all kinds</td>";
  for (const MemoryEvent& rank : memory) out += cell(static_cast<double>(rank.peak));
  return out + "</tr>\n</tbody></table></div>\n";
}

}  // namespace

std::string memory_section(const std::vector<MemoryEvent>& memory) {
  if (memory.empty()) return "";
  const std::vector<std::string> names = tag_names(memory);
  double longest = 1;
  for (const MemoryEvent& rank : memory) longest = std::max(longest, tag_total(rank));
  // Either may be larger, which would look like an error to a reader who adds up the bars.
  std::string out =
      "<section>\n<h2>Memory</h2>\n<p class=\"note\">The peak memory of each kind of tensor and, after each bar, of "
      "the arena that holds all of them: the highest address in use. Kinds that peak at different times share it, so "
      "that it may be smaller than their sum; gaps between tensors may make it larger.</p>\n"
      "<div class=\"card\">\n<div class=\"stack\">\n";
  for (const MemoryEvent& rank : memory) out += memory_bar(rank, names, longest);
  return out + "</div>\n" + memory_table(memory, names) + "</div>\n</section>\n";
}

std::string anomaly_section(const std::vector<AnomalyEvent>& anomalies) {
  if (anomalies.empty()) return "";
  constexpr ptrdiff_t kLatest = 20;
  const auto shown = std::min<ptrdiff_t>(kLatest, std::ssize(anomalies));
  std::string out = "<section>\n<h2>Anomalies</h2>\n";
  if (shown < std::ssize(anomalies))
    out += fmt::format("<p class=\"note\">The last {} of {}</p>\n", shown, anomalies.size());
  out +=
      "<div class=\"card scroll\"><table>\n<thead><tr><th>Step</th><th>What</th><th>Then</th><th>Details</th></tr>"
      "</thead>\n<tbody>\n";
  for (auto one = anomalies.rbegin(); one != anomalies.rbegin() + shown; ++one)
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", one->at.value_or(one->step),
                       escape_html(one->what), escape_html(one->action.value_or("")), escape_html(one->text));
  return out + "</tbody></table></div>\n</section>\n";
}

std::string sample_section(const std::vector<SampleEvent>& samples) {
  if (samples.empty()) return "";
  constexpr ptrdiff_t kLatest = 12;
  std::string out = "<section>\n<h2>Generated samples</h2>\n";
  const auto shown = std::min<ptrdiff_t>(kLatest, std::ssize(samples));
  if (shown < std::ssize(samples))
    out += fmt::format("<p class=\"note\">The last {} of {}; samples.jsonl has all</p>\n", shown, samples.size());
  for (auto s = samples.rbegin(); s != samples.rbegin() + shown; ++s) {
    out += fmt::format(
        "<div class=\"card\"><p class=\"when\">Step {}, continuing the prompt in bold</p><blockquote><span "
        "class=\"prompt\">{}</span>{}"
        "</blockquote></div>\n",
        s->step, escape_html(s->prompt), escape_html(s->text));
  }
  return out + "</section>\n";
}

std::string config_section(std::string_view config, const std::optional<RunEvent>& run) {
  if (config.empty()) return "";
  std::string note;
  if (run) note = fmt::format("<p class=\"note\">Hash {}</p>\n", escape_html(run->config_hash));
  return fmt::format(
      "<section>\n<h2>Configuration</h2>\n{}<div class=\"card\"><details><summary>config.toml</summary><pre>{}</pre>"
      "</details></div>\n</section>\n",
      note, escape_html(config));
}

}  // namespace witan
