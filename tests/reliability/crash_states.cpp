#include "reliability/crash_states.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "witan/base/error.h"

namespace witan::test {
namespace {

constexpr int64_t kRoot = 1;

}  // namespace

Tree read_tree(const fs::path& folder) {
  Tree tree;
  for (const auto& item : fs::recursive_directory_iterator(folder)) {
    auto& found = tree[item.path().lexically_relative(folder).string()];
    if (!item.is_directory()) found = read_file(item.path());
  }
  return tree;
}

void write_tree(const fs::path& folder, const Tree& tree) {
  for (const auto& [path, bytes] : tree) {
    if (bytes)
      std::ofstream(folder / path, std::ios::binary) << *bytes;
    else
      fs::create_directory(folder / path);
  }
}

CrashStates::CrashStates(const Tree& before) {
  seen_[kRoot].folder = true;
  for (const auto& [path, bytes] : before) {
    const auto [folder, name] = place(path);
    const Number node = make(!bytes);
    seen_.at(folder).names[name] = node;
    if (bytes) write(node, 0, *bytes);
  }
  pending_.clear();
  durable_ = seen_;
}

CrashStates::Number CrashStates::make(bool folder) {
  seen_[++nodes_].folder = folder;
  durable_[nodes_].folder = folder;  // not yet named by any entry
  return nodes_;
}

std::pair<CrashStates::Number, std::string> CrashStates::place(const std::string& path) const {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {kRoot, path};
  return {find(path.substr(0, slash)), path.substr(slash + 1)};
}

CrashStates::Number CrashStates::find(const std::string& path) const {
  if (path.empty()) return kRoot;
  const auto [folder, name] = place(path);
  return seen_.at(folder).names.at(name);
}

void CrashStates::apply(const Operation& operation) {
  using Kind = Operation::Kind;
  const auto named = [&](const std::string& path, Number now) {
    auto [folder, name] = place(path);
    return Name{folder, std::move(name), now};
  };
  switch (operation.kind) {
    case Kind::create:
    case Kind::make_folder:
      return add({.names = {named(operation.path, make(operation.kind == Kind::make_folder))}});
    case Kind::write:
      return write(find(operation.path), operation.offset, operation.bytes);
    case Kind::resize:
      return resize(find(operation.path), operation.offset);
    case Kind::sync:
      return sync(find(operation.path));
    case Kind::rename:
      return add({.names = {named(operation.path, 0), named(operation.to, find(operation.path))}});
    case Kind::exchange:
      return add({.names = {named(operation.path, find(operation.to)), named(operation.to, find(operation.path))}});
    case Kind::remove:
      return add({.names = {named(operation.path, 0)}});
  }
}

void CrashStates::write(Number file, uint64_t offset, const std::string& bytes) {
  for (uint64_t done = 0; done < bytes.size();) {
    const uint64_t at = offset + done, count = std::min(kBlock - at % kBlock, bytes.size() - done);
    add({.file = file, .at = at, .bytes = bytes.substr(done, count)});
    done += count;
  }
  if (offset + bytes.size() > seen_.at(file).size) resize(file, offset + bytes.size());
}

void CrashStates::resize(Number file, uint64_t size) {
  add({.file = file, .size = size});
}

bool CrashStates::depends(const Piece& later, const Piece& earlier) {
  for (const Name& name : later.names)
    for (const Name& other : earlier.names)
      if (name.folder == other.folder && name.name == other.name) return true;
  if (later.file != earlier.file || later.file == 0) return false;
  if (later.size || earlier.size) return later.size && earlier.size;
  return later.at / kBlock == earlier.at / kBlock;
}

void CrashStates::add(Piece piece) {
  for (const auto& [number, earlier] : pending_)
    if (depends(piece, earlier)) piece.after.push_back(number);
  happen(seen_, piece, Fate::whole);
  pending_.emplace(pieces_++, std::move(piece));
}

void CrashStates::happen(Nodes& nodes, const Piece& piece, Fate fate) {
  for (const Name& name : piece.names) {
    auto& names = nodes.at(name.folder).names;
    if (name.now == 0)
      names.erase(name.name);
    else
      names[name.name] = name.now;
  }
  if (piece.file == 0) return;
  Node& node = nodes.at(piece.file);
  if (piece.size) {
    if (*piece.size < node.size) {  // truncated bytes read as zeros when the file grows again
      node.blocks.erase(node.blocks.lower_bound((*piece.size + kBlock - 1) / kBlock), node.blocks.end());
      if (const auto last = node.blocks.find(*piece.size / kBlock); last != node.blocks.end())
        last->second.resize(*piece.size % kBlock);
    }
    node.size = *piece.size;
    return;
  }
  std::string& block = node.blocks[piece.at / kBlock];
  const uint64_t begin = piece.at % kBlock;
  uint64_t end = begin + piece.bytes.size();
  if (fate == Fate::torn) end = std::max(begin, (begin + end) / 2 / kSector * kSector);
  if (block.size() < end) block.resize(end);
  block.replace(begin, end - begin, piece.bytes, 0, end - begin);
}

void CrashStates::settle(size_t number) {
  const auto found = pending_.find(number);
  if (found == pending_.end()) return;
  const Piece piece = std::move(found->second);
  pending_.erase(found);
  for (const size_t before : piece.after) settle(before);
  happen(durable_, piece, Fate::whole);
}

void CrashStates::sync(Number node) {
  std::vector<size_t> settled;
  for (const auto& [number, piece] : pending_) {
    const bool names = std::ranges::any_of(piece.names, [&](const Name& name) { return name.folder == node; });
    if (names || piece.file == node) settled.push_back(number);
  }
  for (const size_t number : settled) settle(number);
}

void CrashStates::collect(const Nodes& nodes, Number folder, const std::string& prefix, Tree& tree) {
  for (const auto& [name, number] : nodes.at(folder).names) {
    const Node& node = nodes.at(number);
    auto& found = tree[prefix + name];
    if (node.folder) {
      collect(nodes, number, prefix + name + "/", tree);
      continue;
    }
    std::string& bytes = found.emplace(node.size, '\0');
    for (const auto& [block, held] : node.blocks)
      if (const uint64_t at = block * kBlock; at < node.size)
        bytes.replace(at, std::min(held.size(), node.size - at), held, 0, std::min(held.size(), node.size - at));
  }
}

Tree CrashStates::seen() const {
  Tree tree;
  collect(seen_, kRoot, "", tree);
  return tree;
}

Tree CrashStates::disk(std::vector<Fate> fates) const {
  Nodes nodes = durable_;
  std::set<size_t> missing;  // pieces that are missing or partial
  size_t place = 0;
  for (const auto& [number, piece] : pending_) {
    Fate fate = fates.at(place++);
    if (std::ranges::any_of(piece.after, [&](size_t before) { return missing.contains(before); })) fate = Fate::lost;
    if (fate == Fate::torn && piece.bytes.empty()) fate = Fate::lost;
    if (fate != Fate::whole) missing.insert(number);
    if (fate != Fate::lost) happen(nodes, piece, fate);
  }
  Tree tree;
  collect(nodes, kRoot, "", tree);
  return tree;
}

std::vector<std::vector<CrashStates::Fate>> CrashStates::choose(size_t all, size_t samples, const Philox& rng) const {
  const size_t count = pending();
  std::vector<std::vector<Fate>> chosen;
  if (count < 8 * sizeof all && (size_t{1} << count) <= all) {
    for (size_t bits = 0; bits < size_t{1} << count; ++bits) {
      auto& fates = chosen.emplace_back(count);
      for (size_t i = 0; i < count; ++i) fates[i] = (bits >> i & 1) != 0 ? Fate::whole : Fate::lost;
    }
  } else {
    chosen.emplace_back(count, Fate::lost);
    chosen.emplace_back(count, Fate::whole);
    for (size_t i = 0; i < count; ++i) {
      chosen.emplace_back(count, Fate::lost)[i] = Fate::whole;
      chosen.emplace_back(count, Fate::whole)[i] = Fate::lost;
    }
  }
  // Few, half or most of the pieces have happened, some of them partially.
  static constexpr double kShares[] = {0.15, 0.5, 0.85};
  for (size_t sample = 0; sample < samples; ++sample) {
    auto& fates = chosen.emplace_back(count);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t draw = 2 * (sample * count + i);
      const bool torn = rng.uniform(draw + 1) < 0.1;
      fates[i] = rng.uniform(draw) >= kShares[sample % 3] ? Fate::lost : torn ? Fate::torn : Fate::whole;
    }
  }
  return chosen;
}

}  // namespace witan::test
