#include "witan/data/dedup/duplicate_finder.h"

#include <algorithm>

#include "witan/base/error.h"

namespace witan {
namespace {

// Keys of texts and of bands are sorted together: the lowest bit of the number distinguishes them.
int64_t tagged(int64_t document, bool exact) {
  return 2 * document + (exact ? 0 : 1);
}

}  // namespace

DuplicateFinder::DuplicateFinder(const DuplicateOptions& options) : options_(options), minhash_(options.bands) {
  require<ConfigError>(options.shingles.length >= 1 && options.shingles.length <= 1000,
                       "a shingle has 1 to 1000 words or characters, got ", options.shingles.length, " (--ngram)");
  require<ConfigError>(!options.least_similarity || (*options.least_similarity > 0 && *options.least_similarity <= 1),
                       "the least similarity of duplicates must be above 0 and at most 1 (--verify)");
  keys_.emplace(options.temporary, options.near ? options.memory : options.memory / 3 * 2);
}

DuplicateFinder::Keys DuplicateFinder::keys_of(std::string_view text) const {
  Keys keys{text_key(text, options_.normalization), {}};
  if (!options_.near) return keys;
  std::vector<uint64_t> shingles;
  shingle_hashes(text, options_.shingles, shingles);
  if (!shingles.empty()) keys.bands = minhash_.band_keys(minhash_.signature(shingles));
  return keys;
}

std::vector<uint64_t> DuplicateFinder::shingle_set(std::string_view text) const {
  std::vector<uint64_t> shingles;
  shingle_hashes(text, options_.shingles, shingles);
  std::sort(shingles.begin(), shingles.end());
  shingles.erase(std::unique(shingles.begin(), shingles.end()), shingles.end());
  return shingles;
}

void DuplicateFinder::add(const Keys& keys) {
  keys_->add({keys.text, tagged(documents_, true)});
  for (const DocumentKey& band : keys.bands) keys_->add({band, tagged(documents_, false)});
  ++documents_;
}

void DuplicateFinder::group() {
  if (options_.near)
    group_near();
  else
    group_exact();
  spilled_ = keys_->spilled();
  keys_.reset();
}

void DuplicateFinder::group_exact() {
  removals_.emplace(options_.temporary, options_.memory / 3);
  KeyedDocument first, item;
  bool any = false;
  while (keys_->next(item)) {
    if (!any || item.key != first.key)
      first = item;
    else
      removals_->add({{static_cast<uint64_t>(item.document / 2), static_cast<uint64_t>(first.document / 2)}, 0});
    any = true;
  }
}

void DuplicateFinder::group_near() {
  sets_.emplace(documents_);
  exact_.resize(static_cast<size_t>(documents_));
  if (options_.least_similarity) {
    candidates_.resize(static_cast<size_t>(documents_));
    groups_.emplace(options_.temporary);
  }
  std::vector<int64_t> group;
  KeyedDocument item, last;
  while (keys_->next(item)) {
    if (!group.empty() && item.key != last.key) take_group(group, last.document % 2 == 0);
    group.push_back(item.document / 2);
    last = item;
  }
  if (!group.empty()) take_group(group, last.document % 2 == 0);
}

// Handles the documents that share one key, which ascend. Empties the group.
void DuplicateFinder::take_group(std::vector<int64_t>& group, bool exact) {
  const bool later = !exact && options_.least_similarity.has_value();
  for (size_t i = 1; i < group.size(); ++i) {
    if (exact) exact_[static_cast<size_t>(group[i])] = true;
    if (!later) sets_->join(group.front(), group[i]);
  }
  if (later && group.size() > 1) {
    for (const int64_t document : group) candidates_[static_cast<size_t>(document)] = true;
    const auto count = static_cast<int64_t>(group.size());
    groups_->append(&count, sizeof count);
    groups_->append(group.data(), group.size() * sizeof(int64_t));
  }
  group.clear();
}

void DuplicateFinder::verify(const std::function<std::vector<uint64_t>(int64_t)>& shingles) {
  std::vector<int64_t> group;
  for (uint64_t offset = 0; offset < groups_->size();) {
    int64_t count = 0;
    groups_->read(offset, &count, sizeof count);
    group.resize(static_cast<size_t>(count));
    groups_->read(offset + sizeof count, group.data(), group.size() * sizeof(int64_t));
    offset += sizeof count + group.size() * sizeof(int64_t);
    verify_group(group, shingles);
  }
  groups_.reset();
}

// Compares a document with each cluster of those before it, until it is similar to one document of the cluster: as a
// comparison of all pairs would have it, but where clusters form, a pair or two for each document is enough.
void DuplicateFinder::verify_group(const std::vector<int64_t>& group,
                                   const std::function<std::vector<uint64_t>(int64_t)>& shingles) {
  std::vector<std::vector<int64_t>> clusters;  // of documents of the group
  for (const int64_t document : group) {
    std::optional<std::vector<uint64_t>> own;
    std::vector<int64_t>* joined = nullptr;
    for (auto& cluster : clusters) {
      for (size_t i = 0; i < cluster.size() && sets_->first(cluster[i]) != sets_->first(document); ++i) {
        if (!own) own = shingles(document);
        ++verified_;
        if (jaccard(*own, shingles(cluster[i])) >= *options_.least_similarity)
          sets_->join(cluster[i], document);
        else
          ++rejected_;
      }
      if (!joined && sets_->first(cluster.front()) == sets_->first(document)) joined = &cluster;
    }
    if (joined)
      joined->push_back(document);
    else
      clusters.push_back({document});
  }
}

bool DuplicateFinder::next(Removal& removal) {
  if (removals_) {
    KeyedDocument item;
    if (!removals_->next(item)) return false;
    removal = {static_cast<int64_t>(item.key.high), static_cast<int64_t>(item.key.low), true};
    return true;
  }
  for (; at_ < documents_; ++at_) {
    const int64_t kept = sets_->first(at_);
    if (kept == at_) continue;
    removal = {at_, kept, static_cast<bool>(exact_[static_cast<size_t>(at_)])};
    ++at_;
    return true;
  }
  return false;
}

}  // namespace witan
