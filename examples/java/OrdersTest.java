// Run it: odradek run -- java OrdersTest.java
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

class OrdersTest {
    static final HttpClient CLIENT = HttpClient.newHttpClient();

    static String api(String method, String path, String body) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(System.getenv("ODRADEK_URL") + "/v1/" + path))
                .header("Authorization", "Bearer " + System.getenv("ODRADEK_TOKEN"))
                .method(method, BodyPublishers.ofString(body)).build();
        var response = CLIENT.send(request, BodyHandlers.ofString());
        check(response.statusCode() == 200, method + " " + path + ": " + response.body());
        return response.body();
    }

    static void check(boolean holds, String message) {
        if (!holds) throw new AssertionError(message);
    }

    public static void main(String[] args) throws Exception {
        api("POST", "topics", "{'name': 'orders', 'config': {'retention.ms': 3600000}}".replace('\'', '"'));
        api("POST", "records", "{'topic': 'orders', 'records': [{'value': 'bmV3'}]}".replace('\'', '"')); // Base64
        var read = api("GET", "records?topic=orders", "");
        check(read.contains("\"value\": \"bmV3\""), read);

        var fault = "{'api': 'Produce', 'error': 'NOT_LEADER_OR_FOLLOWER', 'topic': 'orders'}".replace('\'', '"');
        var id = api("POST", "faults", fault).replaceAll(".*\"id\": (\\d+).*", "$1"); // Java has no JSON parser.
        var faults = api("GET", "faults", ""); // An application at KAFKA_BOOTSTRAP_SERVERS would make hits.
        check(faults.contains("\"hits\": 0"), faults);
        api("DELETE", "faults/" + id, "");

        api("POST", "clock", "{\"advance_ms\": 7200000}");
        var left = api("GET", "records?topic=orders", "");
        check(left.equals("{\"records\": []}"), left);
    }
}
