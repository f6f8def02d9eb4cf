// What the hub answers (huggingface.co/docs/hub/api), read from memory. Each throws DataError naming `where` for what
// is not as it should be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "witan/fetch/hub.h"

namespace witan::fetch {

// The description of a repository at a revision.
RepositoryState parse_state(std::string_view text, const std::string& where);

// A page of the list of files, without folders. The names are safe to use below a folder of one's own.
std::vector<HubFile> parse_files(std::string_view text, const std::string& where);

// The address of the page that follows, of a header as RFC 8288 has it: <https://…>; rel="next"; "" without one.
std::string next_page(const HttpResult& result);

}  // namespace witan::fetch
