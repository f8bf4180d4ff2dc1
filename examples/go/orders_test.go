// Run it: odradek run -- go test ./...
package orders

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
)

type answer struct {
	ID      json.Number
	Records []struct{ Value []byte } // Go writes and reads bytes as Base64, as the API does.
	Faults  []struct{ Hits int }
}

func api(t *testing.T, method, path, body string) (found answer) {
	request, _ := http.NewRequest(method, os.Getenv("ODRADEK_URL")+"/v1/"+path, strings.NewReader(body))
	request.Header.Set("Authorization", "Bearer "+os.Getenv("ODRADEK_TOKEN"))
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != 200 || json.NewDecoder(response.Body).Decode(&found) != nil {
		t.Fatal(method, path, response, err)
	}
	return found
}

func TestOrders(t *testing.T) {
	api(t, "POST", "topics", `{"name": "orders", "config": {"retention.ms": 3600000}}`)
	api(t, "POST", "records", `{"topic": "orders", "records": [{"key": "QTE=", "value": "bmV3"}]}`)
	read := api(t, "GET", "records?topic=orders", "").Records
	fault := api(t, "POST", "faults", `{"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "topic": "orders"}`).ID
	faults := api(t, "GET", "faults", "").Faults // An application at KAFKA_BOOTSTRAP_SERVERS would make hits.
	api(t, "DELETE", "faults/"+fault.String(), "")
	api(t, "POST", "clock", `{"advance_ms": 7200000}`)
	left := api(t, "GET", "records?topic=orders", "").Records
	if len(read) != 1 || string(read[0].Value) != "new" || len(faults) != 1 || faults[0].Hits != 0 || len(left) != 0 {
		t.Fatal(read, faults, left)
	}
}
