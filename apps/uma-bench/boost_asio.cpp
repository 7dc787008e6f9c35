// Asio, compiled once for this program (cmake/dependencies.cmake sets BOOST_ASIO_SEPARATE_COMPILATION).
#include <boost/asio/impl/src.hpp>
