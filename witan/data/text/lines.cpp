#include "witan/data/text/lines.h"

#include <algorithm>

namespace witan {

LineReader::LineReader(ByteReader& reader, uint64_t most_bytes)
    : reader_(reader), most_bytes_(most_bytes), block_(256 << 10) {}

bool LineReader::next() {
  line_.clear();
  too_long_ = false;
  bool any = false;
  for (;;) {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = reader_.read(block_.data(), block_.size());
      if (end_ == 0) break;
    }
    any = true;
    const std::string_view rest(block_.data() + begin_, end_ - begin_);
    const size_t newline = rest.find('\n');
    const std::string_view piece = rest.substr(0, newline);
    const size_t room = most_bytes_ - line_.size();
    too_long_ |= piece.size() > room;
    line_.append(piece.substr(0, room));
    begin_ += piece.size();
    if (newline == std::string_view::npos) continue;
    ++begin_;
    break;
  }
  if (!any) return false;
  ++number_;
  if (line_.ends_with('\r') && !too_long_) line_.pop_back();
  return true;
}

}  // namespace witan
