#include "witan/cli/data/stats_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "witan/base/text.h"
#include "witan/report/page/markup.h"
#include "witan/report/page/sections.h"

namespace witan::cli {

std::string share_of(double part, double all) {
  return fmt::format("{:.1f} %", all > 0 ? 100 * part / all : 0);
}

std::vector<ScriptShare> scripts_by_size(const DatasetStatistics& found) {
  std::vector<ScriptShare> scripts;
  for (size_t i = 0; i < kScripts.size(); ++i)
    if (found.letters[i] > 0) scripts.push_back({std::string(kScripts[i]), found.letters[i], found.main_documents[i]});
  std::stable_sort(scripts.begin(), scripts.end(),
                   [](const ScriptShare& a, const ScriptShare& b) { return a.letters > b.letters; });
  return scripts;
}

std::vector<TokenShare> tokens_by_count(const DatasetStatistics& found) {
  std::vector<TokenShare> tokens;
  for (size_t id = 0; id < found.token_counts.size(); ++id)
    if (found.token_counts[id] > 0) tokens.push_back({static_cast<int32_t>(id), found.token_counts[id]});
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const TokenShare& a, const TokenShare& b) { return a.count > b.count; });
  return tokens;
}

namespace {

constexpr size_t kShownTokens = 30, kShownParts = 50;

std::string key_figure(std::string_view label, std::string_view value, std::string_view remark) {
  return fmt::format("<div><dt>{}</dt><dd class=\"value\">{}</dd><dd class=\"remark\">{}</dd></div>\n",
                     escape_html(label), escape_html(value), escape_html(remark));
}

std::string count_text(int64_t count) {
  return count < 10000 ? std::to_string(count) : format_count(static_cast<double>(count));
}

std::string stats_figures(const DatasetStatistics& found, const StatsSubject& subject) {
  std::string out = "<dl class=\"figures\">\n";
  const CorpusStatistics& corpus = found.corpus;
  std::string documents;
  if (corpus.empty_documents > 0) documents = cat(count_text(corpus.empty_documents), " empty skipped");
  if (corpus.bad_rows > 0)
    documents += cat(documents.empty() ? "" : ", ", count_text(corpus.bad_rows), " of ", corpus.rows, " rows unusable");
  out += key_figure("Documents", count_text(found.documents), documents);
  if (found.has_text) {
    out += key_figure("Text", format_bytes(static_cast<double>(found.bytes.sum())), "UTF-8");
    out += key_figure("Characters", count_text(found.characters.sum()), "");
    out += key_figure("Words", count_text(found.words.sum()), "");
  }
  if (found.has_tokens) {
    std::string remark = subject.tokenizer ? cat("of ", clipped(subject.tokenizer_name, 40)) : "";
    if (found.has_text)
      remark = fmt::format("{:.3f} bytes per token", static_cast<double>(found.bytes.sum()) /
                                                         static_cast<double>(std::max<int64_t>(found.tokens.sum(), 1)));
    out += key_figure("Tokens", count_text(found.tokens.sum()), remark);
    if (subject.tokenizer)
      out += key_figure(
          "Vocabulary used",
          share_of(static_cast<double>(tokens_by_count(found).size()), static_cast<double>(found.token_counts.size())),
          cat("of ", found.token_counts.size(), " tokens"));
  }
  const int64_t size = found.has_text ? found.bytes.sum() : found.tokens.sum();
  out += key_figure("Duplicates",
                    share_of(static_cast<double>(found.duplicate_documents), static_cast<double>(found.documents)),
                    cat(counted(found.duplicate_documents, "document"), ", ",
                        share_of(static_cast<double>(found.duplicate_size), static_cast<double>(size)), " of the ",
                        found.has_text ? "text" : "tokens"));
  return out + "</dl>\n";
}

std::string length_figure(const char* title, const LengthHistogram& lengths) {
  if (lengths.count() == 0) return "";
  std::vector<FigureBar> bars;
  for (const auto& bar : lengths.bars())
    bars.push_back({bar.begin < 100000 ? std::to_string(bar.begin) : format_count(static_cast<double>(bar.begin)),
                    static_cast<double>(bar.count),
                    cat(bar.begin, " to ", bar.end - 1, ": ", counted(bar.count, "document"))});
  return bar_figure({title, "documents by length",
                     cat("median ", count_text(lengths.quantile(0.5)), " · mean ",
                         fmt::format("{:.0f}", lengths.mean()), " · most ", count_text(lengths.most()))},
                    bars);
}

std::string lengths_section(const DatasetStatistics& found) {
  return "<section>\n<h2>Lengths</h2>\n<p class=\"note\">Two bars for each doubling of the length.</p>\n"
         "<div class=\"grid\">\n" +
         length_figure("Tokens", found.tokens) + length_figure("Words", found.words) +
         length_figure("Characters", found.characters) + length_figure("Bytes", found.bytes) + "</div>\n</section>\n";
}

std::string scripts_section(const DatasetStatistics& found) {
  const auto scripts = scripts_by_size(found);
  if (scripts.empty()) return "";
  int64_t letters = 0, documents = 0;
  for (const ScriptShare& script : scripts) letters += script.letters, documents += script.documents;
  std::vector<FigureBar> by_letters, by_documents;
  for (const ScriptShare& script : scripts) {
    by_letters.push_back({script.name, static_cast<double>(script.letters),
                          share_of(static_cast<double>(script.letters), static_cast<double>(letters))});
    by_documents.push_back({script.name, static_cast<double>(script.documents),
                            share_of(static_cast<double>(script.documents), static_cast<double>(documents))});
  }
  return "<section>\n<h2>Scripts</h2>\n<div class=\"grid\">\n" +
         share_figure({"Letters", "by script", ""}, by_letters) +
         share_figure({"Documents", "by the script of most of their letters", ""}, by_documents) +
         "</div>\n</section>\n";
}

// At most a few hundred points, evenly spaced on the logarithmic axis of ranks.
Curve rank_curve(const std::vector<TokenShare>& tokens) {
  Curve curve;
  for (double rank = 1; static_cast<size_t>(rank) <= tokens.size(); rank = std::max(rank + 1, std::floor(rank * 1.04)))
    curve.push_back({rank, static_cast<double>(tokens[static_cast<size_t>(rank) - 1].count)});
  return curve;
}

std::string tokens_section(const DatasetStatistics& found, const StatsSubject& subject) {
  const auto tokens = tokens_by_count(found);
  if (tokens.empty()) return "";
  std::vector<FigureBar> frequent;
  for (size_t i = 0; i < std::min<size_t>(12, tokens.size()); ++i) {
    const std::string label = subject.tokenizer
                                  ? cat("“", clipped(subject.tokenizer->token_bytes(tokens[i].id), 24), "”")
                                  : cat("id ", tokens[i].id);
    frequent.push_back({label, static_cast<double>(tokens[i].count),
                        share_of(static_cast<double>(tokens[i].count), static_cast<double>(found.tokens.sum()))});
  }
  return "<section>\n<h2>Tokens</h2>\n<div class=\"grid\">\n" +
         log_curve_figure({"Frequency", "occurrences of a token over its rank",
                           cat(count_text(static_cast<int64_t>(tokens.size())), " different tokens")},
                          rank_curve(tokens)) +
         share_figure({"Most frequent", "share of all tokens", ""}, frequent) + "</div>\n</section>\n";
}

std::string repetition_section(const DatasetStatistics& found) {
  if (!found.has_text || found.documents == 0) return "";
  const auto documents = static_cast<double>(found.documents);
  std::vector<FigureBar> rules, ngrams;
  for (size_t i = 0; i < kRepetitionRules.size(); ++i) {
    const auto& [name, limit] = kRepetitionRules[i];
    const auto& [over, shares] = found.repetition[i];
    rules.push_back({fmt::format("{} > {:.0f} %", name, 100 * limit), static_cast<double>(over),
                     cat(share_of(static_cast<double>(over), documents), ", mean ", share_of(shares, documents))});
  }
  for (size_t i = 0; i < std::min<size_t>(12, found.frequent_ngrams.size()); ++i) {
    const FrequentNgram& ngram = found.frequent_ngrams[i];
    ngrams.push_back(
        {cat("“", clipped(ngram.text, 48), "”"), static_cast<double>(ngram.count), count_text(ngram.count)});
  }
  return "<section>\n<h2>Repetition</h2>\n<p class=\"note\">By the rules of Gopher, which filters of web text apply: " +
         share_of(static_cast<double>(found.repetitive_documents), documents) +
         " of the documents are above one.</p>\n" + "<div class=\"grid\">\n" +
         share_figure({"Documents above a limit", "share of all, by rule", ""}, rules) +
         share_figure({"Most frequent 5-grams", "occurrences, of words in lower case",
                       found.ngram_error > 0 ? cat("at most ", count_text(found.ngram_error), " too small") : ""},
                      ngrams) +
         "</div>\n</section>\n";
}

std::string parts_section(const DatasetStatistics& found) {
  if (found.parts.size() < 2) return "";
  std::string rows;
  for (size_t i = 0; i < std::min(found.parts.size(), kShownParts); ++i) {
    const auto& part = found.parts[i];
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", escape_html(part.path.string()),
                        part.documents, format_bytes(static_cast<double>(part.bytes)),
                        share_of(static_cast<double>(part.bytes), static_cast<double>(found.bytes.sum())));
  }
  const std::string rest =
      found.parts.size() > kShownParts
          ? fmt::format("<p class=\"note\">The first {} of {} files.</p>\n", kShownParts, found.parts.size())
          : "";
  return "<section>\n<h2>Files</h2>\n" + rest +
         "<div class=\"card\"><div class=\"scroll\"><table><thead><tr><th>file</th><th>documents</th><th>text</th>"
         "<th>share</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></div></div>\n</section>\n";
}

nlohmann::ordered_json repetition_json(const DatasetStatistics& found) {
  nlohmann::ordered_json json = {{"documents_above_a_limit", found.repetitive_documents},
                                 {"bytes_above_a_limit", found.repetitive_bytes}};
  const auto documents = static_cast<double>(std::max<int64_t>(found.documents, 1));
  for (size_t i = 0; i < kRepetitionRules.size(); ++i) {
    nlohmann::ordered_json& rule = json["rules"][std::string(kRepetitionRules[i].name)];
    rule["limit"] = kRepetitionRules[i].limit;
    rule["documents"] = found.repetition[i].documents;
    rule["mean"] = found.repetition[i].shares / documents;
  }
  json["ngrams"] = found.ngrams;
  json["ngram_words"] = kFrequentWords;
  json["ngram_counts_too_small_by"] = found.ngram_error;
  json["frequent_ngrams"] = nlohmann::ordered_json::array();
  for (const FrequentNgram& ngram : found.frequent_ngrams) {
    nlohmann::ordered_json one;
    one["text"] = ngram.text;
    one["count"] = ngram.count;
    json["frequent_ngrams"].push_back(std::move(one));
  }
  return json;
}

nlohmann::ordered_json lengths_json(const LengthHistogram& lengths) {
  nlohmann::ordered_json json = {{"total", lengths.sum()},          {"mean", lengths.mean()},
                                 {"least", lengths.least()},        {"p10", lengths.quantile(0.1)},
                                 {"median", lengths.quantile(0.5)}, {"p90", lengths.quantile(0.9)},
                                 {"p99", lengths.quantile(0.99)},   {"most", lengths.most()}};
  json["histogram"] = nlohmann::ordered_json::array();
  for (const auto& bar : lengths.bars())
    if (bar.count > 0) {
      nlohmann::ordered_json one;
      one["begin"] = bar.begin;
      one["end"] = bar.end;
      one["documents"] = bar.count;
      json["histogram"].push_back(std::move(one));
    }
  return json;
}

}  // namespace

std::string stats_page(const DatasetStatistics& found, const StatsSubject& subject) {
  const std::string tokenizer =
      subject.tokenizer ? cat("Tokenizer ", subject.tokenizer_name, ", vocabulary of ", subject.tokenizer->vocab_size())
                        : "No tokenizer";
  const std::string head =
      fmt::format("<header>\n<p class=\"kicker\">{}</p>\n<h1>{}</h1>\n<p class=\"facts\">{}</p>\n</header>\n",
                  kStatsTitle, escape_html(subject.name), escape_html(tokenizer));
  return still_page(subject.name + " · Witan",
                    head + stats_figures(found, subject) + lengths_section(found) + scripts_section(found) +
                        repetition_section(found) + tokens_section(found, subject) + parts_section(found),
                    subject.name);
}

nlohmann::ordered_json stats_json(const DatasetStatistics& found, const StatsSubject& subject) {
  nlohmann::ordered_json json = {{"name", subject.name},
                                 {"documents", found.documents},
                                 {"empty_documents", found.corpus.empty_documents},
                                 {"rows", found.corpus.rows},
                                 {"bad_rows", found.corpus.bad_rows},
                                 {"duplicate_documents", found.duplicate_documents},
                                 {found.has_text ? "duplicate_bytes" : "duplicate_tokens", found.duplicate_size}};
  if (found.has_text) {
    json["bytes"] = lengths_json(found.bytes);
    json["characters"] = lengths_json(found.characters);
    json["words"] = lengths_json(found.words);
    json["scripts"] = nlohmann::ordered_json::object();
    for (const ScriptShare& script : scripts_by_size(found)) {
      json["scripts"][script.name]["letters"] = script.letters;
      json["scripts"][script.name]["documents"] = script.documents;
    }
  }
  if (found.has_text) json["repetition"] = repetition_json(found);
  if (found.has_tokens) {
    json["tokens"] = lengths_json(found.tokens);
    const auto tokens = tokens_by_count(found);
    json["different_tokens"] = tokens.size();
    json["vocab_size"] = nullptr;
    if (subject.tokenizer) json["vocab_size"] = subject.tokenizer->vocab_size();
    json["frequent_tokens"] = nlohmann::ordered_json::array();
    for (size_t i = 0; i < std::min(kShownTokens, tokens.size()); ++i) {
      nlohmann::ordered_json one;
      one["id"] = tokens[i].id;
      one["count"] = tokens[i].count;
      if (subject.tokenizer) one["text"] = std::string(subject.tokenizer->token_bytes(tokens[i].id));
      json["frequent_tokens"].push_back(std::move(one));
    }
  }
  json["files"] = nlohmann::ordered_json::array();
  for (const auto& part : found.parts) {
    nlohmann::ordered_json one;
    one["path"] = part.path.string();
    one["documents"] = part.documents;
    one["bytes"] = part.bytes;
    json["files"].push_back(std::move(one));
  }
  return json;
}

}  // namespace witan::cli
