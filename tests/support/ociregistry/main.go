// A registry for tests, in memory and on loopback. With USERNAME and PASSWORD in the environment, reading needs a token.
package main

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	handler := registry.New(registry.Logger(log.New(os.Stderr, "", 0)))
	if user := os.Getenv("USERNAME"); user != "" {
		handler = protected(handler, listener.Addr().String(), user, os.Getenv("PASSWORD"))
	}
	fmt.Println(listener.Addr().String())
	log.Fatal(http.Serve(listener, handler))
}

// protected asks for a bearer token, which its page /token gives to one user, as registries do.
func protected(inner http.Handler, host, user, password string) http.Handler {
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		log.Fatal(err)
	}
	token := hex.EncodeToString(secret)
	challenge := fmt.Sprintf(`Bearer realm="http://%s/token",service="tests"`, host)
	return http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		name, word, ok := request.BasicAuth()
		knows := ok && equal(name, user) && equal(word, password)
		switch {
		case request.URL.Path == "/token" && knows:
			_ = json.NewEncoder(answer).Encode(map[string]string{"token": token})
		case request.URL.Path == "/token":
			http.Error(answer, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		case equal(request.Header.Get("Authorization"), "Bearer "+token):
			inner.ServeHTTP(answer, request)
		default:
			answer.Header().Set("WWW-Authenticate", challenge)
			http.Error(answer, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		}
	})
}

func equal(one, other string) bool {
	return subtle.ConstantTimeCompare([]byte(one), []byte(other)) == 1
}
