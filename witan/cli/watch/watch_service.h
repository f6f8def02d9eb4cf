// The requests of a dashboard's page: who may ask, and for what. It is read-only: GET and HEAD are all there is.
#pragma once

#include <string>

#include "witan/cli/watch/dashboard.h"
#include "witan/serve/http_server.h"

namespace witan::cli {

class WatchService {
 public:
  // `secret` must stand in the query of each request, as token=SECRET.
  WatchService(Dashboard& dashboard, std::string secret) : dashboard_(dashboard), secret_(std::move(secret)) {}

  // GET / is the page, GET /update?known=VERSION what a page needs to be up to date (Dashboard::update). Requests of
  // other sites' pages are refused with 403 (serve/access.h). Large answers are compressed for clients that take
  // gzip. HEAD is answered as GET; the server leaves the body out.
  serve::HttpResponse answer(const serve::HttpRequest& request);

 private:
  Dashboard& dashboard_;
  std::string secret_;
};

}  // namespace witan::cli
