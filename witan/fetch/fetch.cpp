#include "witan/fetch/fetch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <set>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/files/glob.h"
#include "witan/base/text.h"
#include "witan/base/threads/mutex.h"
#include "witan/fetch/download.h"
#include "witan/fetch/manifest.h"

namespace witan::fetch {
namespace {

constexpr uint64_t kSpareBytes = uint64_t{64} << 20;  // for journals, the manifest and other processes

// One process at a time fetches to a folder.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder) : file_(open_own_file(folder / kFetchFolder / "lock", O_RDWR)) {
    if (::flock(file_.fd(), LOCK_EX | LOCK_NB) == 0) return;
    throw UsageError(
        cat("another process is fetching to ", folder.string(), ": wait for it, or give another folder (--to)"));
  }

 private:
  Descriptor file_;
};

std::string shortened_list(const std::set<std::string>& names) {
  constexpr size_t kMost = 12;
  std::string out;
  size_t shown = 0;
  for (const std::string& name : names) {
    if (++shown > kMost) return out + cat(", … (", names.size(), " in all)");
    out += (out.empty() ? "" : ", ") + clipped(name);
  }
  return out;
}

// The subset's entry in the dataset card. Throws UsageError if the card has none.
const Subset& find_subset(const FetchOptions& options, const RepositoryState& state) {
  const auto found = std::ranges::find(state.subsets, options.subset, &Subset::name);
  std::set<std::string> names;
  for (const Subset& subset : state.subsets) names.insert(subset.name);
  const std::string& repository = options.repository.name;
  require<UsageError>(!names.empty(), "the card of ", repository,
                      " declares no subsets: choose files with --include PATTERN (--list shows them)");
  require<UsageError>(found != state.subsets.end(), repository, " has no subset \"", clipped(options.subset), "\"",
                      suggestion(options.subset, {names.begin(), names.end()}), ": it has ", shortened_list(names));
  require<UsageError>(!found->patterns.empty(), "the card of ", repository, " names no files for the subset ",
                      options.subset, ": choose files with --include PATTERN (--list shows them)");
  return *found;
}

bool is_of_subset(const Subset& subset, const std::string& path) {
  return std::ranges::any_of(subset.patterns,
                             [&](const std::string& pattern) { return matches_data_files(pattern, path); });
}

// Whether a model needs the file: those that `witan import` reads, plus license and readme; weights in one format, in
// the repository's top folder.
bool is_read_of_model(const std::string& path) {
  static const std::vector<std::string> patterns = {"*.safetensors", "*.json",    "*.jinja",   "*.model",  "*.tiktoken",
                                                    "*merges.txt",   "vocab.txt", "README.md", "LICENSE*", "NOTICE*"};
  return path.find('/') == std::string::npos && matches_any(patterns, path);
}

// Names that stand for the others: endings of files, of all that are listed.
std::set<std::string> endings_of(const std::vector<HubFile>& files) {
  std::set<std::string> endings;
  for (const HubFile& file : files) {
    const std::string ending = fs::path(file.path).extension().string();
    endings.insert(ending.empty() ? file.path : "*" + ending);
  }
  return endings;
}

void require_some(const FetchOptions& options, const Listing& listing, const std::vector<HubFile>& all) {
  const std::string& name = options.repository.name;
  require<UsageError>(!listing.files.empty(), "no file of ", name, " is chosen: it has ",
                      all.empty() ? "none" : shortened_list(endings_of(all)),
                      "; see --subset, --include and --exclude (--list shows what they choose)");
  const bool by_default = options.repository.kind == RepositoryKind::model && options.include.empty();
  require<UsageError>(
      !by_default ||
          std::ranges::any_of(listing.files, [](const HubFile& file) { return file.path.ends_with(".safetensors"); }),
      name, " has no weights as .safetensors: choose files with --include PATTERN; it has ",
      shortened_list(endings_of(all)));
}

// State of a file in the folder.
enum class Presence : uint8_t { missing, same, changed, foreign };

class Comparison {
 public:
  Comparison(const FetchOptions& options, const std::string& commit, Manifest& manifest)
      : options_(options), commit_(commit), manifest_(manifest) {}

  Presence of(const HubFile& file) {
    const fs::path path = options_.to / file.path;
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) return Presence::missing;
    const auto fetched = manifest_.find(file.path);
    if (!fs::is_regular_file(status)) return Presence::foreign;
    if (fs::file_size(path) == file.size) {
      const bool as_left = fetched && fetched->file == file && fetched->modified == modified_time(path);
      if (as_left && !options_.verify) return Presence::same;
      if (digest_of_file(path, file.digest.kind) == file.digest) {
        if (!as_left) manifest_.add({file, commit_, modified_time(path)});
        return Presence::same;
      }
    }
    return fetched ? Presence::changed : Presence::foreign;
  }

 private:
  const FetchOptions& options_;
  const std::string& commit_;
  Manifest& manifest_;
};

// Files of an earlier fetch that are in the folder but not chosen now: commands that read the folder read them too.
void note_others(const FetchOptions& options, const Listing& listing, const Manifest& manifest,
                 const std::function<void(const std::string&)>& note) {
  std::set<std::string> chosen, others;
  for (const HubFile& file : listing.files) chosen.insert(file.path);
  for (const std::string& path : manifest.paths())
    if (!chosen.contains(path) && fs::exists(options.to / path)) others.insert(path);
  if (others.empty() || !note) return;
  note(cat("warning: ", options.to.string(), " also holds ", counted(static_cast<int64_t>(others.size()), "file"),
           " of an earlier fetch that ", others.size() == 1 ? "is" : "are",
           " not chosen now, or not in the repository any more: ", shortened_list(others),
           "; what reads the folder reads them too: remove them, or fetch to another folder "
           "(--to)"));
}

void require_room(const fs::path& folder, uint64_t bytes) {
  const uint64_t free = free_disk_bytes(folder);
  require<DiskFullError>(bytes + kSpareBytes <= free, format_bytes(static_cast<double>(bytes)),
                         " must be downloaded, but only ", format_bytes(static_cast<double>(free)), " are free in ",
                         folder.string(),
                         ": free some space, choose less (--subset, --include), or fetch to another "
                         "disk (--to)");
}

}  // namespace

Listing list_files(const FetchOptions& options) {
  Hub hub(options.hub);
  const RepositoryState state = hub.state(options.repository);
  const Subset* subset = options.subset.empty() ? nullptr : &find_subset(options, state);
  const std::string folder = subset != nullptr ? common_folder(subset->patterns) : "";
  const std::vector<HubFile> all = hub.files(options.repository, state.commit, folder);
  Listing listing{state.commit, {}};
  const bool by_default = options.repository.kind == RepositoryKind::model && options.include.empty();
  for (const HubFile& file : all) {
    if (subset != nullptr && !is_of_subset(*subset, file.path)) continue;
    if (!options.include.empty() && !matches_any(options.include, file.path)) continue;
    if (matches_any(options.exclude, file.path)) continue;
    if (by_default && !is_read_of_model(file.path)) {
      ++listing.left_out;
      listing.left_out_bytes += file.size;
      continue;
    }
    listing.files.push_back(file);
  }
  require_some(options, listing, all);
  return listing;
}

FetchSummary fetch_files(const FetchOptions& options, const Listing& listing, const FetchHooks& hooks) {
  const fs::path own = options.to / kFetchFolder, parts = own / "parts";
  create_folders(parts);
  const FolderLock lock(options.to);
  Manifest manifest(options.to, options.repository);
  FetchSummary summary;
  std::vector<HubFile> wanted;
  uint64_t bytes = 0;  // still to be downloaded
  Comparison comparison(options, listing.commit, manifest);
  for (const HubFile& file : listing.files) {
    const Presence presence = comparison.of(file);
    require<UsageError>(presence != Presence::foreign, (options.to / file.path).string(),
                        " exists, was not fetched by witan, and differs from the file of the ",
                        kind_name(options.repository.kind), ": move it away, or fetch to another folder (--to)");
    if (presence == Presence::same) {
      ++summary.there;
      summary.there_bytes += file.size;
      continue;
    }
    if (presence == Presence::changed && hooks.note)
      hooks.note(cat((options.to / file.path).string(), " differs from the hub's current list: downloading it again"));
    bytes += file.size - PartFile::bytes_there(parts, part_name(file), file.size);
    wanted.push_back(file);
  }
  note_others(options, listing, manifest, hooks.note);
  require_room(options.to, bytes);
  if (hooks.begin) hooks.begin(bytes);
  Mutex mutex;
  uint64_t received = 0;
  DownloadHooks during;
  during.note = hooks.note;
  during.received = [&](uint64_t more) {
    const MutexLock held(mutex);
    received += more;
    if (hooks.progress) hooks.progress(std::min(received, bytes));  // bytes that are downloaded twice count once
  };
  during.finished = [&](const HubFile& file) {
    manifest.add({file, listing.commit, modified_time(options.to / file.path)});
  };
  download({options.hub, options.repository, listing.commit, options.to, parts}, wanted, options.download, during);
  std::error_code ignored;  // not empty if it holds parts of other files
  fs::remove(parts, ignored);
  summary.fetched = static_cast<int64_t>(wanted.size());
  for (const HubFile& file : wanted) summary.fetched_bytes += file.size;
  return summary;
}

const std::vector<FetchPreset>& fetch_presets() {
  static const std::vector<FetchPreset> presets = {
      {"fineweb-edu", "HuggingFaceFW/fineweb-edu", "default", {}},
      {"fineweb-edu-10bt", "HuggingFaceFW/fineweb-edu", "sample-10BT", {}},
      {"fineweb-edu-100bt", "HuggingFaceFW/fineweb-edu", "sample-100BT", {}},
      {"fineweb-edu-350bt", "HuggingFaceFW/fineweb-edu", "sample-350BT", {}},
      {"dclm-baseline", "mlfoundations/dclm-baseline-1.0", "", {"*.jsonl.zst"}},
      {"dclm-baseline-10pct", "mlfoundations/dclm-baseline-1.0", "", {"global-shard_01_of_10/*.jsonl.zst"}},
  };
  return presets;
}

const FetchPreset& fetch_preset(const std::string& name) {
  const auto& presets = fetch_presets();
  const auto found = std::ranges::find(presets, name, &FetchPreset::name);
  if (found != presets.end()) return *found;
  std::vector<std::string> names;
  std::string all;
  for (const FetchPreset& preset : presets) {
    names.push_back(preset.name);
    all += (all.empty() ? "" : ", ") + preset.name;
  }
  throw UsageError(cat("there is no preset \"", clipped(name), "\"", suggestion(name, names), ": it is one of ", all));
}

}  // namespace witan::fetch
