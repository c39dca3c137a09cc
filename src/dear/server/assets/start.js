/* Shows the OpenAPI document in Swagger UI. A file of its own: the content policy refuses scripts inside a page. */

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  layout: "BaseLayout",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  validatorUrl: null,
  tryItOutEnabled: true,
  defaultModelsExpandDepth: -1,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
