// Boost.Asio's functions, compiled once. They are here because the server and uma-bench both link wire, which opens no socket.
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
