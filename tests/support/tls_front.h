// A TLS proxy in front of a local plain-text server: https://127.0.0.1:PORT for http://127.0.0.1:OTHER, with a
// certificate made for the test, which only clients that are given it trust.
#pragma once

#include <arpa/inet.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

namespace witan::test {

class TlsFront {
 public:
  // Writes the self-signed certificate to the file.
  TlsFront(int other_port, const std::filesystem::path& certificate) : other_port_(other_port) {
    make_certificate(certificate);
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in place = loopback(0);
    socklen_t size = sizeof place;
    if (::bind(listener_, reinterpret_cast<const sockaddr*>(&place), size) != 0 || ::listen(listener_, 8) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&place), &size) != 0)
      throw std::runtime_error("cannot listen");
    port_ = ntohs(place.sin_port);
    thread_ = std::thread([this] { serve_all(); });
  }
  ~TlsFront() {
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
    SSL_CTX_free(context_);
  }
  TlsFront(const TlsFront&) = delete;
  TlsFront& operator=(const TlsFront&) = delete;

  std::string endpoint() const { return "https://127.0.0.1:" + std::to_string(port_); }

 private:
  static sockaddr_in loopback(int port) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<uint16_t>(port));
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return place;
  }

  void make_certificate(const std::filesystem::path& file) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME* name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(certificate, name);
    X509_EXTENSION* host = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(certificate, host, -1);
    X509_EXTENSION_free(host);
    X509_sign(certificate, key, EVP_sha256());
    context_ = SSL_CTX_new(TLS_server_method());
    const bool used = SSL_CTX_use_certificate(context_, certificate) == 1 && SSL_CTX_use_PrivateKey(context_, key) == 1;
    if (std::FILE* out = std::fopen(file.c_str(), "w")) {
      PEM_write_X509(out, certificate);
      std::fclose(out);
    }
    X509_free(certificate);
    EVP_PKEY_free(key);
    if (!used) throw std::runtime_error("cannot make a certificate");
  }

  // Serves one connection at a time.
  void serve_all() {
    sigset_t pipe;  // clients disconnect without notice
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    while (!stopping_) {
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) return;
      SSL* tls = SSL_new(context_);
      SSL_set_fd(tls, socket);
      if (SSL_accept(tls) == 1) relay(tls, socket);
      SSL_free(tls);
      ::close(socket);
    }
  }

  void relay(SSL* tls, int socket) const {
    const int other = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in place = loopback(other_port_);
    std::array<char, 16384> bytes{};
    bool open = ::connect(other, reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0;
    while (open && !stopping_) {
      std::array<pollfd, 2> either = {{{socket, POLLIN, 0}, {other, POLLIN, 0}}};
      if (SSL_pending(tls) == 0 && ::poll(either.data(), either.size(), 50) <= 0) continue;
      if (SSL_pending(tls) > 0 || either[0].revents != 0) {
        const int got = SSL_read(tls, bytes.data(), bytes.size());
        open = got > 0 && ::send(other, bytes.data(), static_cast<size_t>(got), MSG_NOSIGNAL) == got;
      } else {
        const ssize_t got = ::recv(other, bytes.data(), bytes.size(), 0);
        open = got > 0 && SSL_write(tls, bytes.data(), static_cast<int>(got)) == got;
      }
    }
    ::close(other);
  }

  const int other_port_;
  SSL_CTX* context_ = nullptr;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace witan::test
