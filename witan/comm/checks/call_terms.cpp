#include "witan/comm/checks/call_terms.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"

namespace witan {
namespace {

using Kind = Collective::Kind;

// How a call divides what it moves; 0: it does not.
uint64_t hash_of_parts(const Collective& call) {
  if (call.begins.empty() && call.pieces.empty()) return 0;
  Hasher hasher;
  hasher.update(call.begins.data(), call.begins.size_bytes());
  for (const auto& [tensor, owner] : call.pieces) {
    const std::array<int64_t, 3> piece = {tensor.elements(), static_cast<int64_t>(tensor.dtype()), owner};
    hasher.update(piece.data(), sizeof piece);
  }
  return hasher.low64();
}

std::string counts_disagreement(const GroupNames& names, std::span<const CallTerms> calls) {
  const auto where = [&](size_t r) {
    return cat("axis ", names.axis, ": all_to_all", in_words(calls[r].trace_context), ": rank ", names.ranks[r]);
  };
  for (size_t r = 0; r < calls.size(); ++r) {
    const CallTerms& call = calls[r];
    const int64_t in_rows = call.shape[0];
    int64_t rows_out = 0, rows_in = 0;
    for (size_t peer = 0; peer < calls.size(); ++peer) {
      const int64_t sent = call.send_counts[peer], received = call.recv_counts[peer];
      const int64_t expected = calls[peer].recv_counts[r];
      if (sent != expected)
        return cat(where(r), " sends ", sent, " rows to rank ", names.ranks[peer], ", which expects ", expected);
      // Compared by what is left, so that no sum of hostile counts overflows.
      if (sent < 0 || sent > in_rows - rows_out)
        return cat(where(r), " sends ", sent, " rows to rank ", names.ranks[peer], ", but has only ",
                   in_rows - rows_out, " of its ", in_rows, " left");
      if (received < 0 || received > call.out_rows - rows_in)
        return cat(where(r), " receives ", received, " rows from rank ", names.ranks[peer], ", but has room for only ",
                   call.out_rows - rows_in, " of its ", call.out_rows, "; raise the capacity");
      rows_out += sent;
      rows_in += received;
    }
  }
  return "";
}

// The part of packed terms before the counts.
struct PackedHead {
  uint32_t kind, reduce, dtype, moves;
  int32_t peer, dims;
  uint64_t parts;
  int64_t out_rows, counts, begins;
  std::array<int64_t, Shape::kMostDims> sizes;
  int64_t step, micro_batch;
  uint32_t phase;
  uint16_t module_chars, op_chars;  // of the trace context's words, which stand after the counts
};
constexpr size_t kMostWord = 512;

}  // namespace

CallTerms terms_without_counts(const Collective& call) {
  CallTerms terms;
  terms.kind = call.kind;
  terms.reduce = call.reduce;
  terms.peer = call.peer;
  terms.parts = hash_of_parts(call);
  const Tensor& tensor = call.in.defined() ? call.in : call.out;
  if (call.trace_context != nullptr) terms.trace_context = *call.trace_context;
  terms.begins = call.begins;
  terms.moves = tensor.defined();
  if (!terms.moves) return terms;
  terms.dtype = tensor.dtype();
  terms.shape = tensor.shape();
  return terms;
}

bool same_terms(const CallTerms& a, const CallTerms& b) {
  if (a.kind != b.kind || a.reduce != b.reduce || a.peer != b.peer || a.moves != b.moves || a.parts != b.parts)
    return false;
  if (!a.moves) return true;
  if (a.dtype != b.dtype) return false;
  if (a.kind == Kind::all_to_all && a.shape.dims() == b.shape.dims()) return a.shape.with(0, 0) == b.shape.with(0, 0);
  return a.shape == b.shape;
}

uint64_t hash_of(const CallTerms& terms) {
  Hasher hasher;
  const auto add = [&](auto number) { hasher.update(&number, sizeof number); };
  add(terms.kind);
  add(terms.reduce);
  add(terms.peer);
  add(terms.parts);
  add(terms.moves);
  if (!terms.moves) return hasher.low64();
  add(terms.dtype);
  for (int dim = 0; dim < terms.shape.dims(); ++dim)
    add(terms.kind == Kind::all_to_all && dim == 0 ? int64_t{0} : terms.shape[dim]);
  return hasher.low64();
}

bool counts_fit(const CallTerms& terms) {
  // Subtracts from what is left, so that no sum overflows.
  const auto fit = [](std::span<const int64_t> counts, int64_t rows) {
    return std::ranges::all_of(counts, [&](int64_t count) { return count >= 0 && (rows -= count) >= 0; });
  };
  return fit(terms.send_counts, terms.shape[0]) && fit(terms.recv_counts, terms.out_rows);
}

CallTerms terms_of(const Collective& call) {
  CallTerms terms = terms_without_counts(call);
  if (call.kind != Kind::all_to_all) return terms;
  terms.out_rows = call.out.size(0);
  terms.send_counts = call.send_counts.span<int64_t>();
  terms.recv_counts = call.recv_counts.span<int64_t>();
  return terms;
}

std::string describe(const CallTerms& terms) {
  std::string text(name_of(terms.kind));
  if (terms.reduce == Reduce::max) text += "(max)";
  if (terms.kind == Kind::broadcast) text += cat(" from root ", terms.peer);
  if (terms.moves) text += cat(" ", terms.dtype, " ", terms.shape);
  if (terms.parts == 0) return text;
  return text + (terms.kind == Kind::all_gather_uneven ? " of pieces that ranks own" : " in uneven parts");
}

std::string describe(const Collective& call) {
  return describe(terms_without_counts(call));
}

std::string sizes_of(const CallTerms& terms) {
  constexpr size_t kMost = 16;
  if (terms.begins.size() < 2) return "";
  std::string text = "[";
  for (size_t i = 0; i + 1 < terms.begins.size(); ++i) {
    if (i == kMost) return text + ", ...]";
    text += cat(i == 0 ? "" : ", ", terms.begins[i + 1] - terms.begins[i]);
  }
  return text + "]";
}

std::string parts_disagreement(int rank, const std::string& sizes, int other, const std::string& other_sizes) {
  constexpr const char* kCompare = "; compare their configurations";
  if (sizes.empty() || other_sizes.empty())
    return cat("ranks disagree on the pieces to gather or on the ranks that own them", kCompare);
  return cat("ranks disagree on the sizes of an uneven collective: rank ", rank, " has ", sizes, ", rank ", other, " ",
             other_sizes, kCompare);
}

std::string disagreement(const GroupNames& names, std::span<const CallTerms> calls) {
  const auto otherwise_alike = [&](CallTerms call) {
    call.parts = calls[0].parts;
    return same_terms(calls[0], call);
  };
  for (size_t peer = 1; peer < calls.size(); ++peer)
    if (!same_terms(calls[0], calls[peer]))
      return cat("axis ", names.axis, ": rank ", names.ranks[peer], " calls ", describe(calls[peer]),
                 in_words(calls[peer].trace_context), ", expected as on rank ", names.ranks[0], ": ",
                 describe(calls[0]), in_words(calls[0].trace_context),
                 otherwise_alike(calls[peer]) ? "; " + parts_disagreement(names.ranks[0], sizes_of(calls[0]),
                                                                          names.ranks[peer], sizes_of(calls[peer]))
                                              : "");
  return calls[0].kind == Kind::all_to_all ? counts_disagreement(names, calls) : "";
}

std::string misfit(const GroupNames& names, int from, const CallTerms& sent, int to, const CallTerms& expected) {
  if (sent.dtype == expected.dtype && sent.shape == expected.shape) return "";
  return cat("axis ", names.axis, ": rank ", names.ranks[static_cast<size_t>(from)], " calls ", describe(sent),
             in_words(sent.trace_context), " to rank ", names.ranks[static_cast<size_t>(to)], ", which expects ",
             expected.dtype, " ", expected.shape, in_words(expected.trace_context));
}

std::vector<std::byte> pack(const CallTerms& terms) {
  PackedHead head{};
  head.kind = static_cast<uint32_t>(terms.kind);
  head.reduce = static_cast<uint32_t>(terms.reduce);
  head.dtype = static_cast<uint32_t>(terms.dtype);
  head.moves = terms.moves ? 1 : 0;
  head.peer = terms.peer;
  head.parts = terms.parts;
  head.dims = terms.shape.dims();
  head.out_rows = terms.out_rows;
  head.counts = static_cast<int64_t>(terms.send_counts.size());
  head.begins = static_cast<int64_t>(terms.begins.size());
  for (int dim = 0; dim < head.dims; ++dim) head.sizes[static_cast<size_t>(dim)] = terms.shape[dim];
  const std::string_view module = terms.trace_context.module.substr(0, kMostWord),
                         op = terms.trace_context.op.substr(0, kMostWord);
  head.step = terms.trace_context.step;
  head.micro_batch = terms.trace_context.micro_batch;
  head.phase = static_cast<uint32_t>(terms.trace_context.phase);
  head.module_chars = static_cast<uint16_t>(module.size());
  head.op_chars = static_cast<uint16_t>(op.size());
  std::vector<std::byte> bytes(sizeof head + 2 * terms.send_counts.size_bytes() + terms.begins.size_bytes() +
                               module.size() + op.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  std::byte* at = bytes.data() + sizeof head;
  for (const auto& counts : {terms.send_counts, terms.recv_counts, terms.begins}) {
    if (!counts.empty()) std::memcpy(at, counts.data(), counts.size_bytes());
    at += counts.size_bytes();
  }
  for (const auto& word : {module, op}) {
    if (!word.empty()) std::memcpy(at, word.data(), word.size());
    at += word.size();
  }
  return bytes;
}

PackedTerms unpack(std::span<const std::byte> bytes, int size, int rank) {
  PackedHead head;
  const auto check = [&](bool good) { require<CommError>(good, "malformed collective descriptor from rank ", rank); };
  check(bytes.size() >= sizeof head);
  std::memcpy(&head, bytes.data(), sizeof head);
  check(head.kind <= static_cast<uint32_t>(Kind::barrier) && head.reduce <= static_cast<uint32_t>(Reduce::max));
  check(head.dtype <= static_cast<uint32_t>(DType::i64) && head.moves <= 1);
  check(head.dims >= 0 && head.dims <= Shape::kMostDims);
  const bool counted = head.kind == static_cast<uint32_t>(Kind::all_to_all);
  check(head.counts == (counted ? size : 0) && (!counted || head.dims > 0));
  const bool uneven = head.kind == static_cast<uint32_t>(Kind::reduce_scatter_uneven);
  check(head.begins == (uneven ? size + 1 : 0));
  check(head.phase < TraceContext::kPhases && head.module_chars <= kMostWord && head.op_chars <= kMostWord);
  const size_t numbers = 2 * static_cast<size_t>(head.counts) + static_cast<size_t>(head.begins);
  const size_t counted_bytes = numbers * sizeof(int64_t);
  check(bytes.size() == sizeof head + counted_bytes + head.module_chars + head.op_chars);

  PackedTerms packed;
  CallTerms& terms = packed.terms;
  terms.kind = static_cast<Kind>(head.kind);
  terms.reduce = static_cast<Reduce>(head.reduce);
  terms.dtype = static_cast<DType>(head.dtype);
  terms.moves = head.moves == 1;
  terms.peer = head.peer;
  terms.parts = head.parts;
  terms.out_rows = head.out_rows;
  for (int dim = 0; dim < head.dims; ++dim) {
    check(head.sizes[static_cast<size_t>(dim)] >= 0);
    terms.shape.append(head.sizes[static_cast<size_t>(dim)]);
  }
  packed.counts.resize(numbers);
  if (numbers > 0) std::memcpy(packed.counts.data(), bytes.data() + sizeof head, counted_bytes);
  const std::span<const int64_t> counts(packed.counts);
  terms.send_counts = counts.first(static_cast<size_t>(head.counts));
  terms.recv_counts = counts.subspan(terms.send_counts.size(), terms.send_counts.size());
  terms.begins = counts.last(static_cast<size_t>(head.begins));
  check(terms.begins.empty() || (terms.begins.front() >= 0 && std::ranges::is_sorted(terms.begins)));

  const auto text = bytes.subspan(sizeof head + counted_bytes);
  packed.words.resize(text.size());
  if (!text.empty()) std::memcpy(packed.words.data(), text.data(), text.size());
  const std::string_view words(packed.words.data(), packed.words.size());
  terms.trace_context = {head.step, static_cast<TraceContext::Phase>(head.phase), head.micro_batch,
                         words.substr(0, head.module_chars), words.substr(head.module_chars)};
  return packed;
}

namespace {

struct CallHead {
  uint64_t number, bytes;
};

}  // namespace

void CallLog::add(uint64_t number, const CallTerms& terms) {
  calls_.push_back({number, pack(terms)});
  const uint64_t words[] = {digest_, number, hash_of(terms)};
  digest_ = hash64(words, sizeof words);
}

void CallLog::clear() {
  calls_.clear();
  digest_ = 0;
}

std::vector<std::byte> pack(std::span<const CallLog::Call> calls) {
  std::vector<std::byte> bytes;
  for (const auto& [number, terms] : calls) {
    const CallHead head{number, terms.size()};
    const auto words = std::as_bytes(std::span(&head, 1));
    bytes.insert(bytes.end(), words.begin(), words.end());
    bytes.insert(bytes.end(), terms.begin(), terms.end());
  }
  return bytes;
}

std::vector<CallLog::Call> unpack_calls(std::span<const std::byte> bytes, int rank) {
  std::vector<CallLog::Call> calls;
  while (!bytes.empty()) {
    CallHead head{};
    const bool whole = bytes.size() >= sizeof head;
    if (whole) std::memcpy(&head, bytes.data(), sizeof head);
    require<CommError>(whole && head.bytes <= bytes.size() - sizeof head, "malformed list of calls from rank ", rank);
    const auto terms = bytes.subspan(sizeof head, head.bytes);
    calls.push_back({head.number, {terms.begin(), terms.end()}});
    bytes = bytes.subspan(sizeof head + head.bytes);
  }
  return calls;
}

std::string disagreement(const GroupNames& names, std::span<const std::span<const std::byte>> terms) {
  std::vector<size_t> members;
  std::vector<int> world_ranks;
  std::vector<PackedTerms> packed;  // moved, their counts stay where they are
  for (size_t rank = 0; rank < terms.size(); ++rank) {
    if (terms[rank].empty()) continue;
    members.push_back(rank);
    world_ranks.push_back(names.ranks[rank]);
    packed.push_back(unpack(terms[rank], static_cast<int>(terms.size()), names.ranks[rank]));
  }
  std::vector<CallTerms> calls;
  std::vector<std::vector<int64_t>> counts;  // rows between members alone
  const auto among_members = [&](std::span<const int64_t> all) -> std::span<const int64_t> {
    if (all.empty()) return all;
    std::vector<int64_t>& some = counts.emplace_back();
    for (const size_t member : members) some.push_back(all[member]);
    return some;
  };
  for (const PackedTerms& one : packed) {
    CallTerms& call = calls.emplace_back(one.terms);
    call.send_counts = among_members(call.send_counts);
    call.recv_counts = among_members(call.recv_counts);
  }
  return calls.empty() ? "" : disagreement({names.axis, world_ranks}, calls);
}

std::string disagreement(const GroupNames& names, std::span<const std::vector<CallLog::Call>> logs) {
  std::set<uint64_t> numbers;
  for (const auto& log : logs)
    for (const CallLog::Call& call : log) numbers.insert(call.number);
  for (const uint64_t number : numbers) {
    std::vector<std::span<const std::byte>> terms;
    for (const auto& log : logs) {
      const auto found = std::ranges::find(log, number, &CallLog::Call::number);
      terms.push_back(found == log.end() ? std::span<const std::byte>() : std::span(found->terms));
    }
    if (std::string verdict = disagreement(names, terms); !verdict.empty()) return verdict;
  }
  return "";
}

}  // namespace witan
