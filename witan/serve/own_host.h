// Requests of web pages: a server that only this machine can reach, and that asks for no key, is open to every page
// that a browser on this machine shows, unless it looks where requests come from.
#pragma once

#include <optional>
#include <string>

#include "witan/serve/http_server.h"

namespace witan::serve {

// Why a request is refused as another site's; nothing: it may be this machine's own. A name of another host in Host is
// that of a site whose owner points it here (DNS rebinding), and an Origin that is not this server's is another site's
// script. `name`: another name of this server, such as the one that it listens at; empty: none.
std::optional<std::string> foreign_request(const HttpRequest& request, const std::string& name = {});

}  // namespace witan::serve
